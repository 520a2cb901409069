"""`skytrain export`: a trained model in another project's format."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from .options import From, Overrides, compose_overrides


def export(
    folder: Annotated[Path, typer.Option("--out", help="The folder to make; it must not exist yet, or be empty.")],
    overrides: Overrides = None,
    source: From = None,
    to: Annotated[Literal["hf"], typer.Option(help="hf: a folder for transformers' from_pretrained.")] = "hf",
) -> None:
    """Write a trained model for other tools.

    skytrain export --to hf --out my-model
    """
    from ..pipelines.export import export as story

    config = compose_overrides(overrides).config
    label = story(config, source, folder)
    print(f"{label} -> {folder}")
