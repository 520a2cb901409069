"""Data: list, show, inspect, convert and export what was prepared."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, cast, get_args

from ..config import Config, SkytrainError, find_tasks, format_bytes, format_count, nearest, plural, visible
from ..corpus import Compression, CorpusManifest, export_documents, find_corpus, find_corpus_by_name, open_corpus
from ..report import corpus_html, text_table
from ..runs import Reporter
from ..storage import (
    DamagedRecord,
    NotFound,
    ObjectError,
    Store,
    is_of_store,
    open_store,
    read_object,
    record_of,
)
from ..tokens import (
    LengthStatistics,
    Manifest,
    Prepared,
    Sample,
    TokenFormat,
    check_hashes,
    document_lengths,
    find_prepared,
    length_statistics,
    open_prepared,
    open_tokenizer,
    sample_documents,
    split_documents,
    stored_vocab_size,
    tokens_folder,
    write_token_files,
)

# Names of the files that a conversion writes.
CONVERTED = ("train[._-]*", "val[._-]*", "validation[._-]*")
CONVERTED_ENDINGS = (".bin", ".idx", ".parquet", ".tar")


@dataclass(frozen=True)
class DatasetEntry:
    """A version of a data set, prepared with one tokenizer."""

    dataset: str
    version: str
    tokenizer: str | None  # None: a corpus without tokens yet
    tokens: int
    validation_tokens: int
    documents: int  # of both splits
    text_bytes: int
    bytes: int  # of the shards and their indexes in the store
    corpus_bytes: int  # of the documents in the store; other tokenizers of the version share them
    problem: str | None = None  # what is damaged, if anything is


@dataclass(frozen=True)
class TokenizerEntry:
    """A tokenizer in the store, and the data sets that use it."""

    id: str
    vocab_size: int | None  # None: its files are damaged
    bytes: int
    used_by: list[str]  # data sets, as DATASET@VERSION


@dataclass(frozen=True)
class DataListing:
    """The prepared data sets and the tokenizers of a store."""

    datasets: list[DatasetEntry]
    tokenizers: list[TokenizerEntry]

    def to_json(self) -> str:
        return json.dumps(asdict(self), indent=1)

    def to_text(self) -> str:
        tables = []
        if self.datasets:
            rows = [
                ("DATASET", "VERSION", "TOKENIZER", "TOKENS", "VALIDATION", "DOCUMENTS", "TEXT", "SHARDS", "CORPUS")
            ]
            for each in self.datasets:
                counts = (format_count(each.tokens), format_count(each.validation_tokens), f"{each.documents:,}")
                sizes = (format_bytes(each.text_bytes), format_bytes(each.bytes), format_bytes(each.corpus_bytes))
                rows.append((each.dataset, each.version, each.tokenizer or "-", *counts, *sizes))
            tables.append(text_table(rows))
            tables += [
                f"{each.dataset}@{each.version} is damaged: {each.problem}" for each in self.datasets if each.problem
            ]
        if self.tokenizers:
            tokenizers = [("TOKENIZER", "VOCABULARY", "SIZE", "USED BY")]
            for tokenizer in self.tokenizers:
                used_by = ", ".join(tokenizer.used_by) or "-"
                size = "damaged" if tokenizer.vocab_size is None else f"{tokenizer.vocab_size:,}"
                tokenizers.append((tokenizer.id, size, format_bytes(tokenizer.bytes), used_by))
            tables += ["", text_table(tokenizers)]
        return "\n".join(tables)


def list_data(config: Config) -> DataListing:
    """List finished data sets and tokenizers by name; what is still being prepared is left out."""
    store = open_store(config.store)
    names = sorted({*store.folders("tokens"), *store.folders("corpora")})
    datasets = [entry for name in names for entry in _datasets(store, name)]
    return DataListing(datasets, _tokenizers(store, datasets))


def _datasets(store: Store, dataset: str) -> list[DatasetEntry]:
    entries = []
    for version in sorted({*store.folders(f"tokens/{dataset}"), *store.folders(f"corpora/{dataset}")}):
        try:
            entries += _version(store, dataset, version)
        except SkytrainError as error:  # one that is damaged must not hide the others
            if is_of_store(error):
                raise
            problem = str(error).partition("\n")[0]
            entries.append(replace(_without_tokens(dataset, version), problem=problem))
    return entries


def _version(store: Store, dataset: str, version: str) -> list[DatasetEntry]:
    folders = [tokens_folder(dataset, version, each) for each in store.folders(f"tokens/{dataset}/{version}")]
    tokenized = [prepared for folder in folders if (prepared := open_prepared(store, folder))]
    try:
        corpus = open_corpus(store, dataset, version)
    except NotFound:
        corpus = None  # made from tokens, or not finished
    corpus_bytes = sum(part.bytes for part in corpus.parts) if corpus else 0
    if corpus and not tokenized:
        entry = _without_tokens(dataset, version)
        return [replace(entry, documents=corpus.documents, text_bytes=corpus.text_bytes, corpus_bytes=corpus_bytes)]
    return [_dataset(dataset, version, prepared, corpus_bytes) for prepared in tokenized]


def _without_tokens(dataset: str, version: str) -> DatasetEntry:
    return DatasetEntry(
        dataset=dataset, version=version, tokenizer=None, tokens=0, validation_tokens=0, documents=0, text_bytes=0, bytes=0,
        corpus_bytes=0,
    )  # fmt: skip


def _dataset(dataset: str, version: str, prepared: Prepared, corpus_bytes: int) -> DatasetEntry:
    splits = [split for split in (prepared.train, prepared.validation) if split]
    return DatasetEntry(
        dataset=dataset,
        version=version,
        tokenizer=prepared.tokenizer_id,
        tokens=prepared.train.tokens,
        validation_tokens=prepared.validation.tokens if prepared.validation else 0,
        documents=sum(split.documents for split in splits),
        text_bytes=sum(split.text_bytes for split in splits),
        bytes=sum(shard.bytes + 8 * shard.documents for split in splits for shard in split.shards),
        corpus_bytes=corpus_bytes,
    )


def _tokenizers(store: Store, datasets: list[DatasetEntry]) -> list[TokenizerEntry]:
    entries = []
    for id_ in sorted(store.folders("tokenizers")):
        used_by = [f"{each.dataset}@{each.version}" for each in datasets if each.tokenizer == id_]
        size = sum(stat.size for stat in store.list(f"tokenizers/{id_}"))
        try:
            vocab_size = stored_vocab_size(store, id_)
        except (DamagedRecord, ObjectError):
            vocab_size = None
        entries.append(TokenizerEntry(id_, vocab_size, size, used_by))
    return entries


@dataclass(frozen=True)
class Inspection:
    """The contents of one split of prepared tokens."""

    url: str
    manifest: Manifest
    lengths: LengthStatistics | None  # None for an empty split
    samples: list[Sample]
    problems: list[str] | None  # None: not checked

    def to_json(self) -> str:
        return json.dumps(asdict(self), indent=1, ensure_ascii=False)

    def to_text(self) -> str:
        manifest = self.manifest
        tokenizer = self.manifest.tokenizer
        bytes_per_token = manifest.text_bytes / max(1, manifest.tokens - manifest.documents)
        made_from = ", ".join(
            f"{key} {value}"
            for key, value in sorted(manifest.made_from.items())
            if isinstance(value, (str, int, float))
        )
        rows = {
            "where": self.url,
            "tokens": f"{manifest.tokens:,} {manifest.dtype} ({format_count(manifest.tokens)}) in "
            f"{plural(len(manifest.shards), 'shard')}, {format_bytes(sum(shard.bytes for shard in manifest.shards))}",
            "documents": f"{manifest.documents:,}",
            "text": f"{format_bytes(manifest.text_bytes)}, {bytes_per_token:.2f} bytes a token",
            "tokenizer": f"{tokenizer.name} ({tokenizer.hash[:12]}), {tokenizer.vocab_size:,} tokens",
            "made from": made_from,
        }
        if self.lengths is not None:
            lengths = self.lengths
            rows["lengths"] = (
                f"mean {lengths.mean:.0f} tokens, shortest {lengths.shortest}, median {lengths.median}, "
                f"95% within {lengths.p95}, longest {lengths.longest:,}"
            )
        if self.problems is not None:
            rows["hashes"] = (
                plural(len(self.problems), "damaged file")
                if self.problems
                else f"all {2 * len(manifest.shards)} files are as they were written"
            )
        lines = [f"{name:<10} {value}" for name, value in rows.items()]
        lines += [f"  {problem}" for problem in self.problems or []]
        for sample in self.samples:
            lines += ["", f"document {sample.document:,}, {plural(sample.tokens, 'token')}:", sample.text]
        return "\n".join(lines)


def inspect(
    config: Config, folder: str | None, split: str, samples: int, check: bool, reporter: Reporter
) -> Inspection:
    """Inspect prepared tokens: those in `folder` of the store (tokens/...), or those of the configuration."""
    store = open_store(config.store)
    prepared = (
        open_prepared(store, folder.strip("/")) if folder else find_prepared(store, config.data, config.tokenizer)
    )
    if prepared is None:
        raise SkytrainError(
            f"{store.url(folder or '')} has no prepared tokens: there is no train/manifest.json\n"
            "  the folder is tokens/DATASET/VERSION/TOKENIZER"
        )
    manifest = {"train": prepared.train, "validation": prepared.validation}.get(split)
    if manifest is None:
        raise SkytrainError(f"{store.url(prepared.folder)} has no {split} split")
    prefix = prepared.prefix(split)
    problems = None
    if check:
        problems = check_hashes(store, prefix, manifest, lambda done, total: reporter.progress("check", done, total))
    if problems:  # the index may be what is damaged
        return Inspection(url=store.url(prefix), manifest=manifest, lengths=None, samples=[], problems=problems)
    lengths = document_lengths(store, prefix, manifest)
    shown: list[Sample] = []
    if samples:
        tokenizer = open_tokenizer(config.tokenizer, store, prepared.tokenizer_id)
        if tokenizer.hash != manifest.tokenizer.hash:
            raise SkytrainError(
                f"{store.url(prefix)} was made with tokenizer {manifest.tokenizer.name}, "
                f"and these settings choose {config.tokenizer.name}\n"
                f"  add tokenizer={manifest.tokenizer.name}, or --samples 0"
            )
        shown = sample_documents(store, prefix, manifest, tokenizer, samples, config.seed)
    return Inspection(
        url=store.url(prefix),
        manifest=manifest,
        lengths=length_statistics(lengths) if len(lengths) else None,
        samples=shown,
        problems=problems,
    )


def sample_conversations(config: Config, count: int) -> list[Sample]:
    """Return conversations of the training split as the model sees them. Raise for data without a loss mask."""
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
    """Return a sample's text with its trained part marked: green in a terminal, in brackets elsewhere."""
    before, after = ("\x1b[32m", "\x1b[0m") if colour else ("[[", "]]")
    assert sample.runs is not None
    runs = ((trained, visible(text)) for trained, text in sample.runs)
    return "".join(f"{before}{text}{after}" if trained else text for trained, text in runs)


def describe_corpus(config: Config, name: str | None = None) -> str:
    """Return the stages and rules of a corpus, examples of what each rule removed, and pairs of near-duplicates.

    The corpus is `name`, or the one that `config.data` describes.
    """
    return _describe(config, name, _corpus_text)


def corpus_page(config: Config, name: str | None = None) -> str:
    """Return what `describe_corpus` tells as one HTML page, with near-duplicates side by side."""
    return _describe(config, name, corpus_html)


def _describe(config: Config, name: str | None, form: Callable[[CorpusManifest, dict[str, Any], str], str]) -> str:
    store = open_store(config.store)
    corpus = find_corpus_by_name(store, name) if name else find_corpus(store, config.data)
    key = f"{corpus.folder}/report.json"
    with record_of(store, key):
        return form(corpus, read_object(store, key), store.url(corpus.folder))


def _corpus_text(corpus: CorpusManifest, report: dict[str, Any], url: str) -> str:
    lines = [url, f"{'stage':<20} {'documents':>24} {'bytes':>26}"]
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
    """Write both splits in the format of another project; return the files.

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
    """Remove files of an earlier conversion: any left over would be read as part of the new one."""
    there = sorted(path for pattern in CONVERTED for path in folder.glob(pattern) if path.suffix in CONVERTED_ENDINGS)
    if there and not overwrite:
        raise SkytrainError(
            f"--out {folder} has {plural(len(there), 'converted file')} already: "
            f"{', '.join(path.name for path in there[:3])}\n"
            "  choose another folder, or replace them with --overwrite"
        )
    for path in there:
        path.unlink()


def export_kept(
    config: Config, name: str | None, out: str, compression: Compression, overwrite: bool, reporter: Reporter
) -> Iterator[str]:
    """Export the kept documents of corpus `name`, or of the one that `config.data` describes; yield each file's URL."""
    store = open_store(config.store).patient(config.store.patience)
    corpus = find_corpus_by_name(store, name) if name else find_corpus(store, config.data)
    target = open_store(out).patient(config.store.patience)
    yield from export_documents(store, corpus, target, compression, overwrite=overwrite, progress=reporter.progress)
    reporter.note(f"exported {corpus.documents:,} documents of {corpus.dataset}@{corpus.version}")


def write_task_file(config: Config, task: str, out: Path, reporter: Reporter) -> int:
    """Write a multiple-choice task as llm.c's evaluation file, with the configured tokenizer; return its item count."""
    from ..evaluation import encode_items, load_data, load_questions, write_llmc  # loads torch

    (named,) = find_tasks(replace(config.evaluation, tasks=[task]))
    if named.config.kind != "multiple_choice":
        raise SkytrainError(f"{task} is a task of {named.config.kind}; llm.c's file holds multiple choice")
    store = open_store(config.store)
    tokenizer = open_tokenizer(config.tokenizer, store)
    questions = load_questions(named, load_data(named, store, reporter.note), tokenizer)
    if "harness" not in questions[0].pairs:
        raise SkytrainError(f"{named.data} is such a file already")
    if out.exists():
        raise SkytrainError(f"{out} exists already\n  remove it, or give another --out")
    out.write_bytes(write_llmc(encode_items(questions, tokenizer)))
    return len(questions)
