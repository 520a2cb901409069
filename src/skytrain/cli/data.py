"""`skytrain data`: look at what was prepared, and hand it to other tools."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from . import inspect
from .options import ConfigDirs, Overrides, compose_overrides

app = typer.Typer(
    no_args_is_help=True,
    help="Look at what was prepared, and hand it to other tools.\n\nskytrain data inspect recipe=quickstart",
    rich_markup_mode=None,
)


app.command()(inspect.inspect)


@app.command()
def show(overrides: Overrides = None, config_dir: ConfigDirs = None) -> None:
    """What each rule did to a corpus, with examples of what went.

    skytrain data show data=text data.source.paths='corpus/*.txt'
    """
    config = compose_overrides(overrides, config_dir).config
    from ..pipelines.data import describe_corpus

    print(describe_corpus(config))


@app.command()
def convert(
    to: Annotated[str, typer.Option("--to", help="llmc, nanogpt, megatron, parquet or webdataset.")],
    out: Annotated[Path, typer.Option("--out", help="A folder; train and validation files go into it.")],
    overrides: Overrides = None,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace the files of an earlier conversion in that folder.")
    ] = False,
    config_dir: ConfigDirs = None,
) -> None:
    """Write prepared tokens as the files of another project.

    skytrain data convert --to megatron --out tokens-for-megatron data=fineweb
    """
    config = compose_overrides(overrides, config_dir).config
    from ..pipelines.data import convert as story

    for path in story(config, to, out, overwrite):
        print(path)
