"""`skytrain export`: a trained model in another project's format."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from .options import ConfigDirs, From, Overrides, compose_overrides


def export(
    out: Annotated[
        Path, typer.Option("--out", help="The folder or file to make; it must not exist yet, or be an empty folder.")
    ],
    overrides: Overrides = None,
    config_dir: ConfigDirs = None,
    source: From = None,
    to: Annotated[
        Literal["hf", "llm.c"],
        typer.Option(help="hf: a folder for transformers' from_pretrained. llm.c: its model file."),
    ] = "hf",
) -> None:
    """Write a trained model for other tools.

    skytrain export --to hf --out my-model
    """
    config = compose_overrides(overrides, config_dir).config
    from ..pipelines.export import export as story

    label = story(config, source, out, to)
    print(f"{label} -> {out}")
