"""`skytrain checkpoints`: lists, verifies, prunes and converts the checkpoints of a run."""

from __future__ import annotations

import json
import shlex
from dataclasses import asdict
from typing import Annotated, Literal

import typer

from ..config import SkytrainError
from .options import ConfigDirs, Json, StoreOverrides, compose_overrides
from .reads import split_words

app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode=None,
    help="List, verify, prune and convert checkpoints.\n\n"
    "Example: skytrain checkpoints list my-run store.root=s3://bucket/project",
)

Run = Annotated[
    str, typer.Argument(metavar="RUN", help="The run's name, as `skytrain status` shows it.", show_default=False)
]
RunAtStep = Annotated[str, typer.Argument(metavar="RUN[@STEP]", help="A run, or one of its checkpoints.")]


@app.command("list")
def list_(run: Run, overrides: StoreOverrides = None, config_dir: ConfigDirs = None, as_json: Json = False) -> None:
    """List the committed checkpoints of a run.

    Example: skytrain checkpoints list my-run store.root=s3://bucket/project
    """
    config = compose_overrides(overrides, config_dir).config
    from ..config import format_bytes
    from ..pipelines.checkpoints import list_checkpoints
    from ..report import text_table

    name, checkpoints = list_checkpoints(config, run)
    if as_json:
        print(json.dumps([asdict(each) for each in checkpoints], indent=1))
        return
    rows = [("step", "size", "validation", "attempt", "committed")]
    for each in checkpoints:
        loss = "" if each.validation_loss is None else f"{each.validation_loss:.4f}"
        size = "?" if each.bytes is None else format_bytes(each.bytes)
        rows.append((str(each.step), size, loss, str(each.attempt), each.committed_at or "unreadable"))
    print(text_table(rows, left=frozenset()))
    for problem in [each.problem for each in checkpoints if each.problem]:
        print(problem)
    readable = [each.step for each in checkpoints if not each.problem]
    if readable:
        print(f"\nskytrain evaluate --from {shlex.quote(f'{name}@{readable[-1]}')}")


@app.command()
def verify(
    run: RunAtStep, overrides: StoreOverrides = None, config_dir: ConfigDirs = None, as_json: Json = False
) -> None:
    """Read every byte and compare every hash.

    Verifies one checkpoint, or all of a run. Exits with 9 if one is damaged.

    Example: skytrain checkpoints verify my-run@5000
    """
    config = compose_overrides(overrides, config_dir).config
    from ..config import EXIT_CODES, format_bytes
    from ..pipelines.checkpoints import verify as pipeline
    from .console import reporter

    with reporter() as console:
        results = pipeline(config, run, console)
    if as_json:
        print(json.dumps([asdict(each) for each in results], indent=1))
    else:
        for each in results:
            verdict = "damaged" if each.problems else "whole"
            print(f"{each.run}@{each.step}  {format_bytes(each.bytes)}  {verdict}")
            for problem in each.problems:
                print(f"  {problem}")
        whole = [each.step for each in results if not each.problems]
        if len(whole) < len(results) and whole:
            print(
                f"`skytrain train` with the same settings and --fall-back resumes from step {whole[-1]}; for a new run:"
            )
            print(f"  skytrain train --from {shlex.quote(f'{results[0].run}@{whole[-1]}')} run=NEW-NAME")
    if any(each.problems for each in results):
        raise SystemExit(EXIT_CODES["damaged"])


@app.command()
def prune(
    run: Run,
    overrides: StoreOverrides = None,
    keep: Annotated[int, typer.Option("--keep", min=2, metavar="N", help="Keep the newest N.")] = 2,
    every: Annotated[
        int | None,
        typer.Option("--every", min=1, metavar="STEPS", help="Also keep one every STEPS steps.", show_default=False),
    ] = None,
    best: Annotated[
        int, typer.Option("--best", min=0, metavar="N", help="Also keep the N with the lowest validation loss.")
    ] = 1,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print what would be deleted; delete nothing.")] = False,
    config_dir: ConfigDirs = None,
    as_json: Json = False,
) -> None:
    """Delete old checkpoints.

    Also deletes what interrupted saves left behind. Safe while the run trains.

    Example: skytrain checkpoints prune my-run --keep 3 --every 1000 --dry-run
    """
    config = compose_overrides(overrides, config_dir).config
    from ..checkpoints import Keep
    from ..config import plural
    from ..pipelines.checkpoints import prune_checkpoints

    gone = prune_checkpoints(config, run, Keep(keep, every, best), dry_run=dry_run)
    if as_json:
        print(json.dumps(asdict(gone), indent=1))
        return
    word = "would delete" if dry_run else "deleted"
    steps = f", at step {', '.join(map(str, gone.steps))}" if gone.steps else ""
    print(f"{word} {plural(len(gone.steps), 'checkpoint')}{steps}")
    if gone.leftovers:
        print(f"{word} {plural(len(gone.leftovers), 'folder')} of interrupted saves")


@app.command()
def convert(
    run: RunAtStep,
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="TARGET|KEY=VALUE",
            help="The file or folder to write (with --to skytrain: the run), and settings such as store.root=...",
            show_default=False,
        ),
    ] = None,
    to: Annotated[
        Literal["skytrain", "safetensors", "hf", "llm.c"],
        typer.Option(
            help="skytrain: from DeepSpeed's format, in place or as a new run, so that any mesh can resume from it. "
            "safetensors: one file with the weights under Skytrain's names. hf, llm.c: as `skytrain export`."
        ),
    ] = "skytrain",
    with_optimizer: Annotated[
        bool, typer.Option("--with-optimizer", help="With --to safetensors: include the optimizer state.")
    ] = False,
    config_dir: ConfigDirs = None,
) -> None:
    """Write a checkpoint in another format.

    \b
    Examples:
      skytrain checkpoints convert my-zero3-run
      skytrain checkpoints convert my-run@5000 weights.safetensors --to safetensors
    """
    targets, settings = split_words(words)
    if len(targets) > 1:
        raise SkytrainError(f"give one target, not {len(targets)}: {', '.join(targets)}")
    config = compose_overrides(settings, config_dir).config
    from ..pipelines.checkpoints import convert as pipeline

    made = pipeline(config, run, to, targets[0] if targets else None, with_optimizer=with_optimizer)
    print(f"{run} -> {made}")
