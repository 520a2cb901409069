"""`skytrain launch cloud=slurm`: the script, the question, the submission."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from .options import compose_overrides

if TYPE_CHECKING:
    from pathlib import Path

    from ..config import Composed


def target_of(words: list[str], folders: list[Path]) -> str | None:
    """Return where `launch` is to run a job: cloud.target."""
    return compose_overrides([word for word in words if word.startswith("cloud")], folders).config.cloud.target


def compose_planned(words: list[str], folders: list[Path], file: Path | None) -> Composed:
    """Return the configuration for a scheduler: a plan gives its settings, mesh, nodes and processes."""
    from ..planning import read_plan

    if file is not None:
        plan = read_plan(file)
        choice = plan.choice
        size = [f"cloud.slurm.nodes={choice.nodes}", f"cloud.slurm.processes={choice.gpus_per_node}"]
        clouds = [word for word in words if word.startswith("cloud=")]  # before the settings under it
        words = [
            *plan.words,
            *(choice.layout.overrides if choice.layout else []),
            *clouds,
            *size,
            *(word for word in words if word not in clouds),
        ]
    return compose_overrides(words, folders)


def launch_on_slurm(composed: Composed, folders: list[Path], yes: bool, dry_run: bool) -> None:
    """Write and submit the batch script of a run, or print it."""
    from ..config import format_seconds
    from ..pipelines.launch_slurm import prepare_slurm_launch, start_slurm_launch

    options = [word for folder in folders for word in ("--config-dir", str(folder.absolute()))]
    launch = prepare_slurm_launch(composed, options, ask=not dry_run)
    script, wanted = launch.script, launch.script.settings
    for note in launch.notes:
        print(f"  – {note}", file=sys.stderr)
    if dry_run:
        print(script.render(), end="")
        return
    lines = [
        ("run", script.run),
        ("nodes", f"{wanted.nodes} of partition {wanted.partition or '(default)'}"),
        (
            "each job",
            f"up to {format_seconds(wanted.time)}; it saves before that and is requeued until the run is over",
        ),
        ("script", str(launch.path)),
        ("store", script.store),
    ]
    for name, text in lines:
        print(f"  {name:<10} {text}")
    if not yes:
        from .confirm import ask_yes

        ask_yes("Submit?")
    number = start_slurm_launch(launch)
    print(f"submitted job {number}: run {script.run}")
    print_slurm_next(script.run, composed, folders)


def print_slurm_next(name: str, composed: Composed, folders: list[Path]) -> None:
    """Print what people do next with a run or a sweep: commands that find the same store."""
    import shlex

    store = [word for word in composed.words if word.startswith("store")]
    options = [word for folder in folders for word in ("--config-dir", str(folder))]
    print("\nNext:")
    for verb in ("status", "logs", "stop"):
        follow = ["--follow"] if verb == "logs" else []
        print("  " + shlex.join(["skytrain", verb, name, "cloud=slurm", *store, *options, *follow]))
