"""`skytrain train`: supervise the workers of this machine; under torchrun, be one of the workers."""

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
    from ..config import Composed, Config
    from ..runs import Start

Processes = Annotated[
    int | None,
    typer.Option(
        "--processes",
        min=1,
        metavar="N",
        help="Processes on this machine. Default: one for each GPU; one with parallel=single.",
        show_default=False,
    ),
]
Nodes = Annotated[
    int, typer.Option("--nodes", min=1, metavar="N", help="Number of machines. Run the same command on each.")
]
NodeRank = Annotated[int, typer.Option("--node-rank", min=0, metavar="N", help="The number of this machine, from 0.")]
Rendezvous = Annotated[
    str | None,
    typer.Option(
        "--rendezvous",
        metavar="HOST:PORT",
        help="Where the machines meet: an address of machine 0.",
        show_default=False,
    ),
]
Source = Annotated[
    str | None,
    typer.Option(
        "--from",
        metavar="SOURCE",
        help="Start a new run from a checkpoint (RUN, RUN@STEP, or a path or URL .../runs/RUN@STEP), a Hugging Face "
        "folder, OWNER/NAME on its hub or an llm.c .bin file. A run that has its own checkpoints resumes from those.",
        show_default=False,
    ),
]
WeightsOnly = Annotated[
    bool,
    typer.Option("--weights-only", help="Take only the weights of --from: not optimizer, schedule and data position."),
]
AtStep = Annotated[
    int | None,
    typer.Option(
        "--at-step",
        min=0,
        metavar="STEP",
        help="Start with the weights of --from at this step of the schedule and the data.",
        show_default=False,
    ),
]
FallBack = Annotated[
    bool,
    typer.Option(
        "--fall-back",
        help="If the newest checkpoint is damaged, resume from the newest intact one. Reads every byte of it first.",
    ),
]
AllowChanges = Annotated[
    bool,
    typer.Option("--allow-changes", help="Resume a run although settings that decide its numbers have changed."),
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
    """Train on prepared data; run it again to resume.

    The same command resumes the run from its last checkpoint, on this machine or another.

    A crash restarts the job from the last checkpoint (trainer.max_restarts). Ctrl-C, SIGTERM and EC2 spot
    notices save a checkpoint first.

    \b
    Examples:
      skytrain train recipe=quickstart trainer.steps=500
      skytrain train parallel=fsdp --processes 4
      skytrain train parallel=auto              # the planner chooses mesh and micro-batch
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
    from ..aws import take_secrets
    from ..jobs import JoinedGeneration, ProcessLayout, choose_processes, supervise
    from .console import reporter

    check_installed()
    check_loggers(config)
    take_secrets(config)
    arguments = [*(overrides or []), *worker_options(config_dir or [], start, allow_changes)]
    joined = JoinedGeneration.from_environment()
    layout = ProcessLayout(
        processes=choose_processes(config, processes),
        nodes=nodes,
        node_rank=node_rank,
        rendezvous=rendezvous,
        generation=joined,
    )
    raise SystemExit(supervise(config, arguments, layout, reporter().note))


def worker_options(config_dirs: list[Path], start: Start, allow_changes: bool) -> list[str]:
    """Return the options of this command that its workers need."""
    options = [word for folder in config_dirs for word in ("--config-dir", str(folder))]
    options += start.options()
    if allow_changes:
        options.append("--allow-changes")
    return [*options, "--debug"] if "--debug" in sys.argv else options


def _work(composed: Composed, start: Start, allow_changes: bool) -> None:
    """Run one worker. A deliberate stop exits with 0, because torchrun takes any other code for a crash."""
    from ..jobs import Ranks, Supervision
    from ..models import check_mesh
    from .console import reporter

    supervision = Supervision.from_environment()
    ranks = Ranks.from_environment()
    _back_off()
    try:
        if ranks.first:  # only rank 0: if another rank failed first, torchrun would kill rank 0 before it prints
            check_mesh(composed.config, ranks.world_size, ranks.nodes)
        with naming_extras(), reporter() as console:
            from ..pipelines.train import train as pipeline  # loads torch, which takes seconds

            trained = pipeline(composed.config, console, start, allow_changes=allow_changes, given=composed.given)
    except SkytrainError as error:
        if supervision is not None:
            supervision.report_error(error)
        raise
    print(trained.summary(), flush=True)


def check_installed() -> None:
    """Raise MissingExtra if torch or Lightning is not installed: torchrun would only show a traceback."""
    for package in ("torch", "lightning"):
        if find_spec(package) is None:
            raise MissingExtra(package, "train")


def check_loggers(config: Config) -> None:
    """Raise MissingExtra if a logger's package is not installed, before processes are started that need it."""
    if "wandb" in config.trainer.loggers and find_spec("wandb") is None:
        raise MissingExtra("wandb", "wandb")


def _back_off() -> None:
    """Wait before a restart by torchrun. On one machine the supervisor restarts the job and does the waiting."""
    from ..jobs import restart_wait_seconds

    if restarts := torchrun_restarts():
        time.sleep(restart_wait_seconds(restarts))
