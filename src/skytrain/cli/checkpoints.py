"""`skytrain checkpoints`: what runs have saved."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Annotated, Literal

import typer

from ..config import SkytrainError
from .options import ConfigDirs, Json, Overrides, compose_overrides

app = typer.Typer(
    no_args_is_help=True,
    help="What a run has saved: list, verify, prune, convert.\n\n"
    "skytrain checkpoints list my-run store.root=s3://bucket/project",
)

Run = Annotated[str, typer.Argument(help="The run's name, as `skytrain status` shows it.", show_default=False)]
RunAtStep = Annotated[str, typer.Argument(metavar="RUN[@STEP]", help="A run, or one of its checkpoints.")]


@app.command("list")
def list_(run: Run, overrides: Overrides = None, config_dir: ConfigDirs = None, as_json: Json = False) -> None:
    """The checkpoints of a run that are whole and count.

    skytrain checkpoints list my-run store.root=s3://bucket/project
    """
    config = compose_overrides(overrides, config_dir).config
    from ..config import format_bytes
    from ..pipelines.checkpoints import list_checkpoints

    name, found = list_checkpoints(config, run)
    if as_json:
        print(json.dumps([asdict(each) for each in found], indent=1))
        return
    rows = [("step", "size", "validation", "attempt", "committed")]
    for each in found:
        loss = "" if each.validation_loss is None else f"{each.validation_loss:.4f}"
        size = "?" if each.bytes is None else format_bytes(each.bytes)
        rows.append((str(each.step), size, loss, str(each.attempt), each.committed_at or "unreadable"))
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    for row in rows:
        print("  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)))
    for problem in [each.problem for each in found if each.problem]:
        print(problem)
    readable = [each.step for each in found if not each.problem]
    if readable:
        print(f"\nskytrain evaluate --from {name}@{readable[-1]}")


@app.command()
def verify(run: RunAtStep, overrides: Overrides = None, config_dir: ConfigDirs = None, as_json: Json = False) -> None:
    """Read every byte and compare every hash.

    Of one checkpoint, or of all of a run. Exits with 9 when one is damaged.

    skytrain checkpoints verify my-run@5000
    """
    config = compose_overrides(overrides, config_dir).config
    from ..config import format_bytes
    from ..pipelines.checkpoints import verify as story
    from ..runs import EXIT_CODES
    from .console import reporter

    with reporter() as console:
        results = story(config, run, console)
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
            print(f"the same `skytrain train` with --fall-back resumes from step {whole[-1]}; as a run of its own:")
            print(f"  skytrain train --from {results[0].run}@{whole[-1]} run=NEW-NAME")
    if any(each.problems for each in results):
        raise SystemExit(EXIT_CODES["damaged"])


@app.command()
def prune(
    run: Run,
    overrides: Overrides = None,
    keep: Annotated[int, typer.Option("--keep", min=2, help="The newest so many stay.")] = 2,
    every: Annotated[
        int | None, typer.Option("--every", min=1, help="And those at every so many steps.", show_default=False)
    ] = None,
    best: Annotated[int, typer.Option("--best", min=0, help="And so many with the lowest validation loss.")] = 1,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would go, and delete nothing.")] = False,
    config_dir: ConfigDirs = None,
    as_json: Json = False,
) -> None:
    """Delete old checkpoints.

    And what saves that were cut off left behind. Safe while the run goes on.

    skytrain checkpoints prune my-run --keep 3 --every 1000 --dry-run
    """
    config = compose_overrides(overrides, config_dir).config
    from ..checkpoints import Keep
    from ..pipelines.checkpoints import prune_checkpoints

    gone = prune_checkpoints(config, run, Keep(keep, every, best), dry_run=dry_run)
    if as_json:
        print(json.dumps(asdict(gone), indent=1))
        return
    word = "would delete" if dry_run else "deleted"
    print(
        f"{word} {len(gone.steps)} checkpoints" + (f": steps {', '.join(map(str, gone.steps))}" if gone.steps else "")
    )
    if gone.leftovers:
        print(f"{word} {len(gone.leftovers)} folders of saves that never finished")


@app.command()
def convert(
    run: RunAtStep,
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[TARGET] [KEY=VALUE]...",
            help="The file or folder to make, or with --to skytrain the run; and settings such as store.root=...",
            show_default=False,
        ),
    ] = None,
    to: Annotated[
        Literal["skytrain", "safetensors", "hf", "llm.c"],
        typer.Option(
            help="skytrain: from a checkpoint of a DeepSpeed preset, so that any other continues from it, in place or as "
            "another run. safetensors: one file of weights under our names. hf, llm.c: as `skytrain export`."
        ),
    ] = "skytrain",
    with_optimizer: Annotated[
        bool, typer.Option("--with-optimizer", help="With --to safetensors: the optimizer's state too.")
    ] = False,
    config_dir: ConfigDirs = None,
) -> None:
    """Write a checkpoint in another format.

    skytrain checkpoints convert my-zero3-run

    skytrain checkpoints convert my-run@5000 weights.safetensors --to safetensors
    """
    targets = [word for word in words or [] if "=" not in word]
    if len(targets) > 1:
        raise SkytrainError(f"one target at a time, not {', '.join(targets)}")
    config = compose_overrides([word for word in words or [] if "=" in word], config_dir).config
    from ..pipelines.checkpoints import convert as story

    made = story(config, run, to, targets[0] if targets else None, with_optimizer=with_optimizer)
    print(f"{run} -> {made}")
