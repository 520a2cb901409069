"""`skytrain prepare`: from sources to documents to token shards in the store."""

from __future__ import annotations

from typing import Annotated

import typer

from .options import ConfigDirs, Overrides, compose_overrides


def prepare(
    overrides: Overrides = None,
    config_dir: ConfigDirs = None,
    dry_run: Annotated[
        bool,
        typer.Option("--dry-run", help="Print the stages, the expected sizes and the target; write nothing."),
    ] = False,
) -> None:
    """Turn text into token shards in the store.

    Reads, cleans, de-duplicates, tokenizes and writes. If it is interrupted, run it again: it resumes.
    engine=spark does the same on Spark, with the same bytes.

    \b
    Examples:
      skytrain prepare data=text data.source.paths='corpus/*.txt'
      skytrain prepare data=fineweb data.target_tokens=1B --dry-run
      skytrain prepare engine=spark data=parquet data.source.paths='s3://bucket/crawl/*.parquet'
    """
    config = compose_overrides(overrides, config_dir).config
    from ..aws import take_secrets
    from ..pipelines.prepare import outline, prepare as pipeline
    from .console import reporter

    if dry_run:
        for name, value in outline(config):
            print(f"{name:<12} {value}")
        return
    take_secrets(config)
    with reporter() as console:
        prepared = pipeline(config, console)
    print(prepared.folder)
