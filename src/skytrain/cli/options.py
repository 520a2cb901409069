"""Arguments that commands share, and how they become a configuration."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from ..pipelines.compose import compose_overrides as compose_overrides

if TYPE_CHECKING:
    from ..config import Composed


def complete_setting(context: typer.Context, incomplete: str) -> list[str]:
    """Complete a setting for the shell.

    bash takes `=` for a word of its own: `recipe=q` arrives as three words, and only the last is replaced.
    """
    from ..config import complete

    before = list(context.params.get("overrides") or [])
    if before[-1:] == ["="]:
        before.pop()
    elif incomplete:  # a new word; right after `=`, nothing is typed yet
        return complete(incomplete)
    if not before or "=" in before[-1]:
        return complete(incomplete)
    start = f"{before[-1]}="
    return [each.removeprefix(start) for each in complete(start + incomplete)]


Overrides = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="KEY=VALUE",
        help="Choose groups (recipe=quickstart, model=gpt2-355m) and set values (trainer.steps=500). "
        "`skytrain config show` lists all settings, `skytrain config explain KEY` explains one.",
        autocompletion=complete_setting,
        show_default=False,
    ),
]
StoreOverrides = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="KEY=VALUE",
        help="Which store: store.root=s3://bucket/project, or a folder. Default: skytrain-store, in this folder.",
        show_default=False,
    ),
]
ConfigDirs = Annotated[
    list[Path] | None,
    typer.Option(
        "--config-dir",
        metavar="FOLDER",
        help="A folder with your own groups, such as recipe/mine.yaml. Repeatable.",
        show_default=False,
    ),
]
From = Annotated[
    str | None,
    typer.Option(
        "--from",
        metavar="RUN[@STEP]",
        help="A run, one of its checkpoints, a Hugging Face folder, OWNER/NAME in the store or on the hub, or a file of llm.c. "
        "Default: the newest run with a checkpoint.",
        show_default=False,
    ),
]
Split = Annotated[Literal["train", "validation"], typer.Option(help="The split to read.")]
Precision = Annotated[
    Literal["32-true", "bf16-mixed", "bf16-true", "16-mixed"] | None,
    typer.Option(
        help="Compute in this precision. Default: that of the run on a GPU, 32-true on a CPU.",
        show_default=False,
    ),
]
Trusted = Annotated[
    list[str] | None,
    typer.Option(
        "--trust",
        metavar="KEY=VALUE",
        help="Code, a repository or a folder that the run's record, the plan or the file of the experts names and that may be loaded, such as "
        "model.target=my_package.MyModel. What your own settings name is trusted. Repeatable.",
        show_default=False,
    ),
]
RunName = Annotated[
    str, typer.Argument(metavar="RUN", help="The run's name, as `skytrain status` shows it.", show_default=False)
]
Json = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]


def seconds_of(option: str, value: str) -> float:
    """Return the seconds of an option such as `--wait 10m`."""
    from ..config import SkytrainError, parse_seconds

    try:
        seconds = parse_seconds(value)
    except ValueError as error:
        raise SkytrainError(f"{option} {value}: {error}") from None
    if not 0 <= seconds < math.inf:
        raise SkytrainError(f"{option} {value}: give a time from now on, such as 0s, 90s or 10m")
    return seconds


def compose_cloud(overrides: list[str] | None, config_dirs: list[Path] | None = None) -> Composed:
    """Compose the configuration of an AWS command: cloud=aws is added if `skytrain cloud init` has written it."""
    from ..aws import CLOUD_FILE

    settings = list(overrides or [])
    folders = config_dirs or []
    written = any((folder / CLOUD_FILE).is_file() for folder in [*folders, Path()])
    if written and not any(word.startswith("cloud=") for word in settings):
        settings.insert(0, "cloud=aws")
    return compose_overrides(settings, folders, recipe_weights="skip")
