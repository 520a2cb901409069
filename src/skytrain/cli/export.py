"""`skytrain export`: writes a trained model in another project's format."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from .options import ConfigDirs, From, Overrides, compose_overrides


def export(
    out: Annotated[
        Path,
        typer.Option("--out", metavar="PATH", help="The folder or file to write. It must not exist, or be empty."),
    ],
    overrides: Overrides = None,
    config_dir: ConfigDirs = None,
    source: From = None,
    to: Annotated[
        Literal["hf", "llm.c"],
        typer.Option(help="hf: a folder for from_pretrained of transformers. llm.c: its model file."),
    ] = "hf",
) -> None:
    """Write a trained model for other tools.

    \b
    Examples:
      skytrain export --to hf --out my-model
      skytrain export --from my-run@5000 --to llm.c --out model.bin
    """
    config = compose_overrides(overrides, config_dir).config
    from ..pipelines.export import export as pipeline

    label = pipeline(config, source, out, to)
    print(f"{label} -> {out}")
