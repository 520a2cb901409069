"""`skytrain node`: this machine takes part in a run, together with others that it meets through the store."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from .options import ConfigDirs, Overrides, compose_overrides, seconds_of
from .train import AllowChanges, AtStep, FallBack, Processes, Source, WeightsOnly, check_installed, worker_options

if TYPE_CHECKING:
    from ..config import Config
    from ..jobs import NodeRequest, RentedMachines

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
EfaDevices = Annotated[
    int,
    typer.Option(
        "--efa", min=0, metavar="N", help="EFA devices that this machine must have, and NCCL use; 0 does not look."
    ),
]
NodeJobKind = Annotated[
    Literal["train", "prepare", "tune", "serve"],
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
    from ..runs import Start, run_name

    composed = compose_overrides(overrides, config_dir, source)
    start = Start(source, weights_only, at_step, fall_back)
    if job in ("train", "tune"):
        check_installed()
    request = NodeRequest(
        run_name(composed.config, start),
        [*(overrides or []), *worker_options(config_dir or [], start, allow_changes)],
        nodes,
        choose_processes(composed.config, processes) if job == "train" else (processes or 1),
        name,
        address,
        launch,
        job,
        seconds_of("--keep-on-failure", keep_on_failure),
        efa,
    )
    run = {"sagemaker": run_in_container, "eks": run_in_pod}.get(str(composed.config.cloud.target), run_here)
    raise SystemExit(run(composed.config, request))


def run_here(config: Config, request: NodeRequest) -> int:
    """Take part in the run until it is over; returns the exit code."""
    from ..jobs import run_node
    from ..runs import cloudwatch_stream, log_destination
    from .console import reporter

    note, instance = reporter().note, _instance(config, request)
    destination = log_destination(config, request.run, on_ec2=instance is not None)
    with cloudwatch_stream(destination, request.run, f"node-{instance}", note) as log:

        def tell(text: str) -> None:
            note(text)
            if log is not None:
                log.log(text)

        machines = _machines(config, request, instance, tell)
        try:
            return run_node(config, request, tell, machines)
        except Exception as error:
            # Its group would replace a machine that only ends, again and again: this one counts, with its reason.
            if machines is not None and instance is not None:
                machines.replace_me(f"its agent failed: {error}")
            raise


def run_in_container(config: Config, request: NodeRequest) -> int:
    """Take part as a host of a SageMaker training job, which is told why if that fails."""
    from ..cloud import read_host, write_failure
    from ..config import SkytrainError
    from ..pipelines.sagemaker_jobs import failure_reason

    root = Path(config.cloud.sagemaker.root)
    try:
        host = read_host(root)
        if len(host.hosts) != request.nodes:
            raise SkytrainError(
                f"the training job has {len(host.hosts)} hosts, and the run is planned for {request.nodes}"
            )
        if host.gpus is not None and host.gpus < request.processes and config.trainer.device != "cpu":
            raise SkytrainError(f"this host has {host.gpus} GPUs, and --processes is {request.processes}")
        code = run_here(config, replace(request, name=host.name, address=request.address or host.address))
        if reason := failure_reason(config, request.run, code):
            write_failure(root, reason)
    except SkytrainError as error:
        write_failure(root, str(error))
        raise
    return code


def run_in_pod(config: Config, request: NodeRequest) -> int:
    """Take part as a pod of a Kubernetes job; the downward API says which, and at what address."""
    from ..cloud import read_pod

    pod = read_pod(request.nodes)
    return run_here(config, replace(request, name=request.name or pod.name, address=request.address or pod.address))


def _instance(config: Config, request: NodeRequest) -> str | None:
    """Return the id of this instance; None where someone else than `launch` started this machine."""
    from ..runs import find_metadata

    metadata = find_metadata() if request.launch and config.cloud.target == "ec2" else None
    found = metadata.instance() if metadata is not None else None
    return found.id if found is not None else None


def _machines(
    config: Config, request: NodeRequest, instance: str | None, tell: Callable[[str], None]
) -> RentedMachines | None:
    """Return the machines of the launch; None where someone else started this machine."""
    from ..cloud import Ec2Machines, SlurmMachines, open_session, read_launch
    from ..storage import open_store

    if request.launch and config.cloud.target == "slurm":
        return SlurmMachines(Path(config.cloud.slurm.folder).absolute() / request.run, str(request.name), tell)
    if instance is None:
        return None
    store = open_store(config.store)
    record = read_launch(store, request.run, str(request.launch))
    machines = Ec2Machines(open_session(record.region), store, record, instance, tell)
    machines.count_ended()  # this machine may replace one that was lost while it booted
    return machines
