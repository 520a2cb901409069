"""Data: show and convert what was prepared."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import cast, get_args

from ..config import Config, SkytrainError, format_bytes, nearest, plural
from ..corpus import find_corpus
from ..storage import open_store
from ..tokens import (
    Sample,
    TokenFormat,
    find_prepared,
    open_tokenizer,
    sample_documents,
    split_documents,
    write_token_files,
)

# Names of the files that a conversion writes.
CONVERTED = ("train[._-]*", "val[._-]*", "validation[._-]*")
CONVERTED_ENDINGS = (".bin", ".idx", ".parquet", ".tar")


def sample_conversations(config: Config, count: int) -> list[Sample]:
    """Conversations of the training split as the model sees them; other data has none."""
    store = open_store(config.store)
    prepared = find_prepared(store, config.data, config.tokenizer)
    if not prepared.train.masked:
        raise SkytrainError(
            f"data={config.data.name} has no loss mask, so there is no trained part to mark\n"
            "  samples of documents: skytrain data inspect"
        )
    tokenizer = open_tokenizer(config.tokenizer, store, prepared.tokenizer_id)
    return sample_documents(store, prepared.prefix("train"), prepared.train, tokenizer, count, config.seed)


def marked(sample: Sample, colour: bool) -> str:
    """A sample with its trained part marked: green in a terminal, in brackets elsewhere."""
    before, after = ("\x1b[32m", "\x1b[0m") if colour else ("[[", "]]")
    assert sample.runs is not None
    return "".join(f"{before}{text}{after}" if trained else text for trained, text in sample.runs)


def describe_corpus(config: Config) -> str:
    """The table of stages and rules, then examples of what each rule removed and near-duplicates side by side."""
    store = open_store(config.store)
    corpus = find_corpus(store, config.data)
    report = json.loads(store.read(f"{corpus.folder}/report.json"))
    lines = [f"{store.url(corpus.folder)}", f"{'stage':<20} {'documents':>24} {'bytes':>26}"]
    for stage in corpus.stages:
        documents = f"{stage.documents_in:>11} -> {stage.documents_out:>9}"
        sizes = f"{format_bytes(stage.bytes_in):>12} -> {format_bytes(stage.bytes_out):>10}"
        lines.append(f"{stage.name:<20} {documents} {sizes}")
    for rule, count in corpus.removed.items():
        lines.append(f"removed by {rule}: {count}")
        lines += [f"    {example['id']}: {example['text'][:120]!r}" for example in report["examples"].get(rule, [])]
    near = report.get("near_duplicates")
    if near:
        clusters = f"{plural(near['clusters'], 'cluster')} of sizes {near['cluster_sizes']}"
        lines.append(f"near-duplicates: {clusters}")
        if below := near.get("below_min_similarity"):
            lines.append(
                f"  {below} of {near['removed']} are similar to the kept document only through other removed ones"
            )
        for pair in near["examples"]:
            kept = pair.get("kept") or pair["kept_or_joined"]  # the name in older reports
            lines += [
                f"  {pair['jaccard']}",
                f"    - {pair['removed']['id']}: {pair['removed']['text'][:120]!r}",
                f"    + {kept['id']}: {kept['text'][:120]!r}",
            ]
    return "\n".join(lines)


def convert(config: Config, format: str, folder: Path, overwrite: bool = False) -> list[Path]:
    """Writes both splits in the format of another project; returns the files.

    Existing ones are replaced only with `overwrite`.
    """
    formats = get_args(TokenFormat)
    if format not in formats:
        guess = nearest(format, formats)
        raise SkytrainError(
            f"--to {format}: not a format\n  {f'did you mean {guess}?  ' if guess else ''}one of {', '.join(formats)}"
        )
    store = open_store(config.store)
    prepared = find_prepared(store, config.data, config.tokenizer)
    _clear(folder, overwrite)
    files: list[Path] = []
    with tempfile.TemporaryDirectory(prefix="skytrain-convert-") as scratch:
        for manifest in (prepared.train, prepared.validation):
            if manifest is not None:
                documents = split_documents(store, prepared.prefix(manifest.split), manifest, Path(scratch))
                name = "val" if manifest.split == "validation" and format in ("nanogpt", "llmc") else manifest.split
                files += write_token_files(documents, cast(TokenFormat, format), folder / name, manifest)
    return files


def _clear(folder: Path, overwrite: bool) -> None:
    """Removes files of an earlier conversion: one that is left over would be read as part of the new one."""
    there = sorted(path for pattern in CONVERTED for path in folder.glob(pattern) if path.suffix in CONVERTED_ENDINGS)
    if there and not overwrite:
        raise SkytrainError(
            f"--out {folder} has {plural(len(there), 'converted file')} already: "
            f"{', '.join(path.name for path in there[:3])}\n"
            "  choose another folder, or replace them with --overwrite"
        )
    for path in there:
        path.unlink()
