"""`parallel=auto`: the mesh, micro-batch and activation checkpointing that the planner predicts to be fastest here."""

from __future__ import annotations

import os
from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import Any

from ..config import Config, ConfigError, check, format_bytes, format_count, has_layers, mesh_problem
from ..jobs import Ranks
from ..planning import (
    DRIVER_FRACTION,
    MIB,
    Generation,
    Gpu,
    Machines,
    Node,
    Placement,
    best_placement,
    find_gpu,
    fixed_of,
    job_of,
    load_catalog,
    load_measurements,
    parallel_settings,
)

# A CPU core as a device for the planner. It serves to order layouts; the speed of a CPU is not predicted.
CORE = Gpu(
    name="cpu",
    device_pattern=r"^cpu$",
    peak_flops=100e9,
    fp32_flops=50e9,
    generation=Generation(gemm=0.5, attention=0.5, fused_attention=0.5, fp8=False),
    power=1.0,
    memory_bytes_per_s=10e9,
    link="pcie",
    link_bytes_per_s=5e9,
    source="assumed, only for the order of layouts",
)
UNKNOWN_GPU = "a100"  # its speeds are used for a GPU that is not in the table
NETWORK_BYTES_PER_S = 1.25e9  # between machines that are not in the catalogue: 10 Gbit/s


@dataclass(frozen=True)
class LocalMachine:
    """The hardware of each process of the job."""

    node: Node
    memory_bytes: float  # for each process
    name: str
    fused: bool = True  # whether the fused kernels run on it; they need less memory


def choose_layout(
    config: Config, ranks: Ranks, machine: LocalMachine, given: Collection[str] = ()
) -> tuple[Config, str]:
    """Replace `auto` in the configuration by a layout, and explain the choice in a sentence.

    `given` names the settings that the user chose: a micro-batch or activation checkpointing among them is kept.
    """
    if not has_layers(config.model):
        raise ConfigError(
            "parallel.name",
            f"auto supports only the built-in decoder, and {config.model.name} is plugged in",
            hint="try parallel=ddp, or parallel=fsdp where one device cannot hold it",
        )
    job = job_of(config)
    found = best_placement(
        replace(job, fused=job.fused and machine.fused),
        Machines(machine.node, ranks.world_size, int(machine.memory_bytes / MIB / DRIVER_FRACTION)),
        config.trainer.batch_tokens,
        measurements=load_measurements(),
        problem=lambda placement: problem_of(laid_out(config, placement), ranks.world_size),
        fixed=fixed_of(config, given),
    )
    if not isinstance(found, Placement):
        raise ConfigError(
            "parallel.name",
            f"auto finds no layout on {ranks.world_size} x {machine.name}: {found.reason}",
            hint="more processes, a smaller trainer.micro_batch, or trainer.batch_tokens that divide among them",
        )
    return laid_out(config, found), _sentence(found, machine, ranks)


def laid_out(config: Config, placement: Placement) -> Config:
    """Return the configuration for this placement."""
    job = placement.job
    mesh = placement.mesh
    degrees: dict[str, Any] = parallel_settings(mesh)
    return replace(
        config,
        parallel=replace(
            config.parallel,
            reduce_once=job.reduce_once,
            schedule=job.schedule,
            chunks=mesh.chunks if mesh.pipeline > 1 else None,
            **degrees,
        ),
        trainer=replace(config.trainer, micro_batch=job.micro_batch, activation_checkpointing=job.recomputation),
    )


def problem_of(config: Config, world_size: int) -> str | None:
    """Return why `train` cannot run this configuration on so many processes; None if it can."""
    try:
        check(config, {})
    except ConfigError as error:
        return str(error)
    return mesh_problem(config, world_size)


def this_machine(ranks: Ranks, device: str) -> LocalMachine:
    """Return the GPU or the CPU cores of this machine; the catalogue says how such machines are connected."""
    if device == "cpu":
        pages = os.sysconf("SC_PHYS_PAGES")
        page_bytes = os.sysconf("SC_PAGE_SIZE")
        node = Node(gpu=CORE, gpus=ranks.local_size, network_bytes_per_s=NETWORK_BYTES_PER_S, efa=False)
        return LocalMachine(node, pages * page_bytes / ranks.local_size, "cpu", fused=False)
    import torch

    from ..models import kernels_available

    fused = kernels_available(torch.device(device))
    name = torch.cuda.get_device_name()
    memory = torch.cuda.get_device_properties(ranks.local_rank).total_memory
    gpu = find_gpu(name)
    if gpu is None or gpu.peak_flops is None:
        gpu = find_gpu(UNKNOWN_GPU)
        assert gpu is not None
    like = [one for one in load_catalog().instances if one.gpus >= ranks.local_size and one.device.name == gpu.name]
    if not like:
        return LocalMachine(
            Node(gpu=gpu, gpus=ranks.local_size, network_bytes_per_s=NETWORK_BYTES_PER_S, efa=False),
            memory,
            name,
            fused,
        )
    nearest = Node.of(min(like, key=lambda one: one.gpus))
    return LocalMachine(replace(nearest, gpus=ranks.local_size), memory, name, fused)


def _sentence(placement: Placement, machine: LocalMachine, ranks: Ranks) -> str:
    job = placement.job
    mesh = placement.mesh
    again = {
        "none": "nothing computed again",
        "selective": "all but products and attention computed again",
        "full": "blocks computed again",
    }[job.recomputation]
    needs = format_bytes(placement.memory.total)
    has = format_bytes(machine.memory_bytes)
    speed = f"{format_count(placement.tokens_per_s)} tokens/s ({placement.prediction.source}), "
    return (
        f"parallel=auto: {mesh}, micro-batch {job.micro_batch}, {again}; the fastest layout by prediction on "
        f"{ranks.world_size} x {machine.name}: {'' if machine.name == 'cpu' else speed}{needs} of {has} each"
    )
