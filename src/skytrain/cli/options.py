"""Arguments that verbs share, and how they become a configuration."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

if TYPE_CHECKING:
    from ..config import Composed

Overrides = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[KEY=VALUE]...",
        help="Choose groups (recipe=quickstart, model=gpt2-355m) and set values (trainer.steps=500). `skytrain config show` lists them all.",
        show_default=False,
    ),
]
ConfigDirs = Annotated[
    list[Path] | None,
    typer.Option(
        "--config-dir",
        help="A folder of your own groups, such as recipe/mine.yaml. May be given more than once.",
        show_default=False,
    ),
]
From = Annotated[
    str | None,
    typer.Option(
        "--from",
        help="A run, RUN@STEP, or an exported folder. Default: the newest run in the store.",
        show_default=False,
    ),
]
Precision = Annotated[
    Literal["32-true", "bf16-mixed", "bf16-true", "16-mixed"] | None,
    typer.Option(
        help="Compute in this precision. Default: on a GPU as the run was trained, on a CPU 32-true.",
        show_default=False,
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]


def compose_overrides(
    overrides: list[str] | None, config_dirs: list[Path] | None = None, start: str | None = None
) -> Composed:
    """The configuration; with weights to start from (`model.weights`, or `start`), that of their model."""
    from ..config import compose
    from ..models import adopt_model, check_model

    composed = compose(overrides or [], config_dirs or [], adopt=lambda weights: adopt_model(start or weights))
    check_model(composed.config.model, start)
    return composed
