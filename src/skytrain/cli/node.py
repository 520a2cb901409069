"""`skytrain node`: this machine takes part in a run, together with others that it meets through the store."""

from __future__ import annotations

from typing import Annotated, Literal

import typer

from .options import ConfigDirs, Overrides, compose_overrides, seconds_of
from .train import AllowChanges, AtStep, FallBack, Processes, Source, WeightsOnly, check_installed, worker_options

NodeCount = Annotated[int, typer.Option("--nodes", min=1, metavar="N", help="Machines that train together.")]
Name = Annotated[
    str | None,
    typer.Option(
        metavar="NAME", help="Name of this machine. Default: its EC2 instance id, or its host name.", show_default=False
    ),
]
Address = Annotated[
    str | None,
    typer.Option(
        metavar="IP",
        help="Address at which the other machines reach this one. Default: that of the default route.",
        show_default=False,
    ),
]
Launch = Annotated[
    str | None,
    typer.Option(
        metavar="ID",
        help="Shared by all machines of one launch: one that starts after the run is over leaves at once.",
        show_default=False,
    ),
]
KeepOnFailure = Annotated[
    str,
    typer.Option(metavar="TIME", help="After a failure, stay so long (30m) before the machine is given back."),
]
Keep = Annotated[
    bool,
    typer.Option("--keep", help="After success, stay until the kill time: `skytrain stop` ends the machines earlier."),
]
EfaDevices = Annotated[
    int,
    typer.Option(
        "--efa", min=0, metavar="N", help="EFA devices that this machine must have, and NCCL use; 0 does not look."
    ),
]
NodeJobKind = Annotated[
    Literal["train", "prepare", "tune", "serve", "finish"],
    typer.Option("--job", help="What the machines do; all but training needs one machine."),
]


def node(
    overrides: Overrides = None,
    config_dir: ConfigDirs = None,
    nodes: NodeCount = 1,
    processes: Processes = None,
    name: Name = None,
    address: Address = None,
    launch: Launch = None,
    job: NodeJobKind = "train",
    keep_on_failure: KeepOnFailure = "0s",
    keep: Keep = False,
    efa: EfaDevices = 0,
    source: Source = None,
    weights_only: WeightsOnly = False,
    at_step: AtStep = None,
    allow_changes: AllowChanges = False,
    fall_back: FallBack = False,
) -> None:
    """Train together with machines that come and go.

    Run the same command on each. The machines find each other through the store: no addresses, no order. As soon as
    --nodes of them are ready they form a generation, and train from the run's last commit. When one is lost, gets a
    spot notice or fails, the generation ends, with a checkpoint where there is time, and the machines that are ready
    form the next one. More machines than --nodes wait as spares. docs/node-agent.md describes it.

    \b
    Examples:
      skytrain node recipe=gpt2-124m-pile parallel=hsdp store.root=s3://bucket/project --nodes 2
      skytrain node parallel=fsdp store.root=/shared/store --nodes 2 --name one --address 127.0.0.1
    """
    from ..jobs import NodeRequest, choose_processes
    from ..pipelines.node import take_part
    from ..runs import Start, run_name
    from .console import reporter

    composed = compose_overrides(overrides, config_dir, source)
    start = Start(source, weights_only, at_step, fall_back)
    if job in ("train", "tune", "finish"):
        check_installed()
    request = NodeRequest(
        run=run_name(composed.config, start),
        arguments=[*(overrides or []), *worker_options(config_dir or [], start, allow_changes)],
        nodes=nodes,
        processes=choose_processes(composed.config, processes) if job == "train" else (processes or 1),
        name=name,
        address=address,
        launch=launch,
        job=job,
        keep_seconds=seconds_of("--keep-on-failure", keep_on_failure),
        keep=keep,
        efa_devices=efa,
    )
    raise SystemExit(take_part(composed.config, request, reporter().note))
