"""`skytrain data inspect`: numbers, samples and hashes of prepared tokens."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated

import typer

from .options import ConfigDirs, Json, Overrides, Split, compose_overrides

if TYPE_CHECKING:
    from ..pipelines.inspect import Inspection


def inspect(
    overrides: Overrides = None,
    folder: Annotated[
        str | None,
        typer.Option(
            "--folder",
            metavar="KEY",
            help="Tokens in the store: tokens/DATASET/VERSION/TOKENIZER. Default: those that KEY=VALUE chooses.",
            show_default=False,
        ),
    ] = None,
    split: Split = "train",
    samples: Annotated[int, typer.Option(min=0, metavar="N", help="Documents to show; seed=N chooses others.")] = 3,
    check: Annotated[bool, typer.Option("--check", help="Read every byte and compare every hash.")] = False,
    config_dir: ConfigDirs = None,
    as_json: Json = False,
) -> None:
    """Show prepared tokens: manifest, lengths, samples.

    Example: skytrain data inspect recipe=quickstart --check
    """
    config = compose_overrides(overrides, config_dir).config
    from ..pipelines.inspect import inspect as pipeline
    from .console import reporter

    with reporter() as console:
        found = pipeline(config, folder, split, samples, check, console)
    print(json.dumps(found.plain(), indent=1, ensure_ascii=False) if as_json else "\n".join(_lines(found)))
    if found.problems:
        raise SystemExit(2)


def _lines(found: Inspection) -> list[str]:
    from ..config import format_bytes, format_count, plural

    manifest = found.manifest
    tokenizer = found.manifest.tokenizer
    bytes_per_token = manifest.text_bytes / max(1, manifest.tokens - manifest.documents)
    made_from = ", ".join(
        f"{key} {value}" for key, value in sorted(manifest.made_from.items()) if isinstance(value, (str, int, float))
    )
    rows = {
        "where": found.url,
        "tokens": f"{manifest.tokens:,} {manifest.dtype} ({format_count(manifest.tokens)}) in "
        f"{plural(len(manifest.shards), 'shard')}, {format_bytes(sum(shard.bytes for shard in manifest.shards))}",
        "documents": f"{manifest.documents:,}",
        "text": f"{format_bytes(manifest.text_bytes)}, {bytes_per_token:.2f} bytes a token",
        "tokenizer": f"{tokenizer.name} ({tokenizer.hash[:12]}), {tokenizer.vocab_size:,} tokens",
        "made from": made_from,
    }
    if found.lengths is not None:
        lengths = found.lengths
        rows["lengths"] = (
            f"mean {lengths.mean:.0f} tokens, shortest {lengths.shortest}, median {lengths.median}, "
            f"95% within {lengths.p95}, longest {lengths.longest:,}"
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
