"""`skytrain train`: trains here, on as many processes as asked for; under torchrun, it is one of them."""

from __future__ import annotations

import sys
import time
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ..config import MissingExtra, SkytrainError, is_worker, naming_extras, torchrun_restarts
from .options import ConfigDirs, Overrides, compose_overrides

if TYPE_CHECKING:
    from ..config import Composed
    from ..runs import Start

Processes = Annotated[
    int | None,
    typer.Option(
        "--processes",
        min=1,
        help="Processes on this machine. Default: one for each GPU, and one alone with parallel=single.",
        show_default=False,
    ),
]
Nodes = Annotated[int, typer.Option("--nodes", min=1, help="Machines; the same command runs on each of them.")]
NodeRank = Annotated[int, typer.Option("--node-rank", min=0, help="Which of the machines this is; the first is 0.")]
Rendezvous = Annotated[
    str | None,
    typer.Option(
        "--rendezvous",
        metavar="HOST:PORT",
        help="Where the machines meet: the first one's address.",
        show_default=False,
    ),
]
Source = Annotated[
    str | None,
    typer.Option(
        "--from",
        help="Start a new run from a checkpoint (RUN, RUN@STEP, a path or URL .../runs/RUN@STEP), a Hugging Face folder or an llm.c .bin file. A run that has checkpoints of its own continues those.",
        show_default=False,
    ),
]
WeightsOnly = Annotated[
    bool, typer.Option("--weights-only", help="Of --from, take the weights and leave optimizer, schedule and position.")
]
AtStep = Annotated[
    int | None,
    typer.Option(
        "--at-step",
        min=0,
        help="Begin with the weights of --from at this step of the schedule and of the data.",
        show_default=False,
    ),
]
FallBack = Annotated[
    bool,
    typer.Option(
        "--fall-back",
        help="Where the run's newest checkpoint is damaged, resume from the newest whole one. Reads every byte of it first.",
    ),
]
AllowChanges = Annotated[
    bool,
    typer.Option("--allow-changes", help="Go on with a run although settings that decide its numbers have changed."),
]


def train(
    overrides: Overrides = None,
    config_dir: ConfigDirs = None,
    processes: Processes = None,
    nodes: Nodes = 1,
    node_rank: NodeRank = 0,
    rendezvous: Rendezvous = None,
    source: Source = None,
    weights_only: WeightsOnly = False,
    at_step: AtStep = None,
    allow_changes: AllowChanges = False,
    fall_back: FallBack = False,
) -> None:
    """Train on prepared data; the same command again continues.

    On this machine or any other, from where it stopped.

    A job that crashes is restarted from the last committed checkpoint (trainer.max_restarts). Ctrl-C, SIGTERM and EC2's
    spot notice save first.

    skytrain train recipe=quickstart trainer.steps=500

    skytrain train parallel=fsdp --processes 4

    skytrain train parallel=auto        the mesh and micro-batch that the planner finds fastest on the GPUs at hand

    skytrain train run=fork --from seed.bin --at-step 2365
    """
    from ..jobs import Supervision
    from ..runs import Start

    composed = compose_overrides(overrides, config_dir, source)
    config = composed.config
    start = Start(source, weights_only, at_step, fall_back)
    supervision = Supervision.from_environment()
    if supervision is not None or is_worker():
        _work(composed, start, allow_changes)
        return
    from ..jobs import ProcessLayout, choose_processes, supervise
    from .console import reporter

    _check_installed()
    words = [*(overrides or []), *_words(config_dir or [], start, allow_changes)]
    layout = ProcessLayout(choose_processes(config, processes), nodes, node_rank, rendezvous)
    raise SystemExit(supervise(config, words, layout, reporter().note))


def _words(config_dirs: list[Path], start: Start, allow_changes: bool) -> list[str]:
    """The options as a worker's command line has them."""
    words = [word for folder in config_dirs for word in ("--config-dir", str(folder))]
    if start.source is not None:
        words += ["--from", start.source]
    if start.weights_only:
        words.append("--weights-only")
    if start.at_step is not None:
        words += ["--at-step", str(start.at_step)]
    if start.fall_back:
        words.append("--fall-back")
    if allow_changes:
        words.append("--allow-changes")
    return [*words, "--debug"] if "--debug" in sys.argv else words


def _work(composed: Composed, start: Start, allow_changes: bool) -> None:
    """One process of the job. Ends with 0 whatever made it stop on purpose: torchrun takes any other code for a crash."""
    from ..config import check_job
    from ..jobs import Ranks, Supervision
    from .console import reporter

    supervision, ranks = Supervision.from_environment(), Ranks.from_environment()
    _back_off()
    try:
        if ranks.first:  # alone: another rank that ended first would have torchrun kill this one before it has spoken
            check_job(composed.config, ranks.world_size, ranks.nodes)
        with naming_extras(), reporter() as console:
            from ..pipelines.train import train as story  # loads torch, for many seconds

            trained = story(composed.config, console, start, allow_changes=allow_changes, given=composed.given)
    except SkytrainError as error:
        if supervision is not None:
            supervision.report_error(error)
        raise
    print(trained.summary(), flush=True)


def _check_installed() -> None:
    """The supervisor itself loads no torch, and torchrun without it would only show a traceback."""
    for package in ("torch", "lightning"):
        if find_spec(package) is None:
            raise MissingExtra(package, "train")


def _back_off() -> None:
    """Before a restart that torchrun made; where it runs on this machine alone, the supervisor restarts and waits itself."""
    from ..jobs import restart_wait_seconds

    if restarts := torchrun_restarts():
        time.sleep(restart_wait_seconds(restarts))
