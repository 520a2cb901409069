"""`skytrain data inspect`: what is in prepared tokens."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated

import typer

from .options import ConfigDirs, Json, Overrides, compose_overrides

if TYPE_CHECKING:
    from ..pipelines.inspect import Inspection


def inspect(
    overrides: Overrides = None,
    folder: Annotated[
        str | None,
        typer.Option(
            "--folder",
            help="Prepared tokens in the store, tokens/DATASET/VERSION/TOKENIZER. Default: those of the KEY=VALUEs.",
            show_default=False,
        ),
    ] = None,
    split: Annotated[str, typer.Option(help="train or validation")] = "train",
    samples: Annotated[
        int, typer.Option(min=0, help="Documents to show, from all over the split; another seed=N shows others.")
    ] = 3,
    check: Annotated[bool, typer.Option("--check", help="Read every byte and compare every hash.")] = False,
    config_dir: ConfigDirs = None,
    as_json: Json = False,
) -> None:
    """What is in prepared tokens: manifest, lengths, samples.

    With --check, also whether every hash holds.

    skytrain data inspect recipe=quickstart --check
    """
    config = compose_overrides(overrides, config_dir).config
    from ..pipelines.inspect import inspect as story
    from .console import reporter

    with reporter() as console:
        found = story(config, folder, split, samples, check, console)
    print(json.dumps(found.plain(), indent=1, ensure_ascii=False) if as_json else "\n".join(_lines(found)))
    if found.problems:
        raise SystemExit(2)


def _lines(found: Inspection) -> list[str]:
    from ..config import format_bytes, format_count, plural

    manifest = found.manifest
    made_from = ", ".join(
        f"{key} {value}" for key, value in sorted(manifest.made_from.items()) if isinstance(value, (str, int, float))
    )
    rows = {
        "where": found.url,
        "tokens": f"{manifest.tokens:,} {manifest.dtype} ({format_count(manifest.tokens)}) in {plural(len(manifest.shards), 'shard')}, {format_bytes(sum(shard.bytes for shard in manifest.shards))}",
        "documents": f"{manifest.documents:,}",
        "text": f"{format_bytes(manifest.text_bytes)}, {manifest.text_bytes / max(1, manifest.tokens - manifest.documents):.2f} bytes a token",
        "tokenizer": f"{manifest.tokenizer.name} ({manifest.tokenizer.hash[:12]}), {manifest.tokenizer.vocab_size:,} tokens",
        "made from": made_from,
    }
    if found.lengths is not None:
        lengths = found.lengths
        rows["lengths"] = (
            f"mean {lengths.mean:.0f} tokens, shortest {lengths.shortest}, median {lengths.median}, 95% within {lengths.p95}, longest {lengths.longest:,}"
        )
    if found.problems is not None:
        rows["hashes"] = (
            plural(len(found.problems), "damaged file")
            if found.problems
            else f"all {2 * len(manifest.shards)} files are as they were written"
        )
    lines = [f"{name:<10} {value}" for name, value in rows.items()]
    lines += [f"  {problem}" for problem in found.problems or []]
    for sample in found.samples:
        lines += ["", f"document {sample.document:,}, {plural(sample.tokens, 'token')}:", sample.text]
    return lines
