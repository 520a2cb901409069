"""Bytes that ranks exchange in one optimizer step, over which link, and how long that takes.

Volumes are per rank. Ring algorithms: an all-gather or reduce-scatter of S bytes over p ranks moves S(p-1)/p, an all-reduce twice
that. DDP and ZeRO: Rajbhandari et al. 2020 (arXiv 1910.02054), section 7. Tensor and sequence parallelism: Korthikanti et al. 2022
(arXiv 2205.05198), section 4. Pipeline bubble: Narayanan et al. 2021 (arXiv 2104.04473), section 2.2.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from .catalog import InstanceType
from .flops import decoder_size
from .hardware import Gpu, find_gpu
from .memory import TrainingJob, narrow_bytes
from .mesh import DIMENSIONS, Mesh

# Fraction of a link's nominal rate that large collectives reach, and seconds before a collective's first byte. Assumed.
LINK_EFFICIENCY = {"nvlink": 0.75, "pcie": 0.5, "efa": 0.7, "tcp": 0.6}
LINK_LATENCY_SECONDS = {"nvlink": 15e-6, "pcie": 25e-6, "efa": 40e-6, "tcp": 100e-6}
HOST_BYTES_PER_S = 20e9  # between one GPU and its machine's memory; assumed
HOST_UPDATE_BYTES = 28  # of a parameter that AdamW reads and writes
HOST_UPDATE_BYTES_PER_S = 100e9  # of a machine's memory, reached by an update on its cores; assumed
DISK_BYTES_PER_S = 4e9  # of its NVMe disks; assumed


@dataclass(frozen=True)
class Node:
    """One machine as collectives see it."""

    gpu: Gpu
    gpus: int
    network_bytes_per_s: float
    efa: bool
    memory_bytes: float = math.inf  # of the machine, and of its local disks; unlimited where nobody knows
    disk_bytes: float = math.inf

    @classmethod
    def of(cls, instance: InstanceType) -> Node:
        return cls(
            instance.device,
            instance.gpus,
            instance.network_gbps * 1e9 / 8,
            instance.efa_interfaces > 0,
            instance.memory_gib * 2**30,
            instance.nvme_gb * 1e9,
        )

    @classmethod
    def of_device(cls, device_name: str) -> Node | None:
        """A single GPU with no neighbours, by torch's name for it; None when the table does not know it."""
        gpu = find_gpu(device_name)
        return cls(gpu, 1, 1.25e9, False) if gpu else None

    @property
    def network(self) -> str:
        return "efa" if self.efa else "tcp"


@dataclass(frozen=True)
class Exchange:
    """One dimension's traffic in one optimizer step."""

    dimension: str
    what: str
    link: str  # nvlink, pcie, efa or tcp
    bytes: float  # sent by each rank
    seconds: float
    overlapped: bool  # whether computation can hide it
    once: bool  # in a step, after the last micro-batch's gradients, and not in each micro-batch


def exchanges(job: TrainingJob, mesh: Mesh, node: Node) -> list[Exchange]:
    """Everything that ranks say to each other in one optimizer step."""
    size = decoder_size(job.model)
    held = size.parameters / mesh.tensor / mesh.pipeline
    layers = job.model.layers / mesh.pipeline
    micro = job.accumulation
    narrow = narrow_bytes(job.precision)
    tokens = job.micro_batch * job.sequence_length / mesh.context
    found: list[Exchange] = []

    def add(dimension: str, what: str, volume: float, calls: float, overlapped: bool, once: bool = False) -> None:
        link, bytes_per_s = _link(mesh, node, dimension)
        seconds = volume / bytes_per_s + calls * LINK_LATENCY_SECONDS[link]
        found.append(Exchange(dimension, what, link, volume, seconds, overlapped, once))

    if mesh.replicate > 1:
        volume = 2 * 4 * held / mesh.sharing * _share(mesh.replicate)
        add("replicate", "all-reduce of gradients", volume, layers, overlapped=True, once=True)
    if mesh.sharing > 1:
        what, volume, calls, once = _shard_traffic(job, mesh, held, layers, narrow)
        add("shard", what, volume, calls, overlapped=True, once=once)
    if mesh.offload:
        found += _host_traffic(job, mesh, node, held / mesh.sharing)
    if mesh.tensor > 1:
        passes = 6 if job.checkpointing else 4  # attention and MLP, forward and backward, and forward again
        volume = micro * layers * passes * 2 * narrow * tokens * job.model.width * _share(mesh.tensor)
        add(
            "tensor",
            "all-gather and reduce-scatter of activations",
            volume,
            micro * layers * passes * 2,
            overlapped=False,
        )
    if mesh.context > 1:
        what, volume, calls, hidden = _context_traffic(job, mesh, narrow)
        add("context", what, micro * layers * tokens * volume, micro * layers * calls, overlapped=hidden)
    if mesh.pipeline > 1:
        volume = micro * 2 * 4 * tokens * job.model.width / mesh.tensor
        add("pipeline", "activations to the next stage, gradients back", volume, 2 * micro, overlapped=True)
    return found


def _shard_traffic(
    job: TrainingJob, mesh: Mesh, held: float, layers: float, narrow: int
) -> tuple[str, float, float, bool]:
    """What moves, bytes, collectives, and whether it does so once a step."""
    share = _share(mesh.sharing)
    if mesh.zero < 3:
        return "reduce-scatter of gradients, all-gather of weights", 2 * 4 * held * share, 2 * layers, True
    # Weights for the forward and for the backward pass in each micro-batch, gradients once or each time. Stages of a pipeline
    # run many micro-batches through the same weights, so they gather once and scatter once.
    pipelined = mesh.pipeline > 1
    gathers = 1 if pipelined else 2 * job.accumulation
    scatters = 1 if pipelined or job.reduce_once else job.accumulation
    volume = (gathers * narrow + scatters * 4) * held * share
    return "all-gather of weights, reduce-scatter of gradients", volume, (gathers + scatters) * layers, False


def _host_traffic(job: TrainingJob, mesh: Mesh, node: Node, held: float) -> list[Exchange]:
    """An update that the host makes on the `held` parameters of each rank: over PCIe and back, in memory or on its disks."""
    moved = 8 * held
    ranks = min(node.gpus, mesh.gpus)
    rate = DISK_BYTES_PER_S if job.offload_to_disk else HOST_UPDATE_BYTES_PER_S
    update = HOST_UPDATE_BYTES * held * ranks
    return [
        Exchange("shard", "gradients to the host, weights back", "pcie", moved, moved / HOST_BYTES_PER_S, True, True),
        Exchange("shard", "the update on the host", "pcie", 0.0, update / rate, overlapped=False, once=True),
    ]


def _context_traffic(job: TrainingJob, mesh: Mesh, narrow: int) -> tuple[str, float, float, bool]:
    """What moves, bytes for each token of a rank and messages in one layer and micro-batch, and whether attention hides it."""
    others, passes = mesh.context - 1, 2 if job.checkpointing else 1  # the forward pass, and again
    queries = job.model.heads * job.model.head_width / mesh.tensor
    keys = 2 * job.model.groups * job.model.head_width / mesh.tensor
    if job.context_method == "ulysses":
        # Queries, keys and values go out and what they found comes back; groups that are too few for the ranks are copied.
        copies = mesh.context / math.gcd(job.model.groups // mesh.tensor, mesh.context)
        volume = (passes + 1) * narrow * (2 * queries + keys * copies) * _share(mesh.context)
        return "heads for tokens and back", volume, 2 * (passes + 1), False
    # Keys and values for each pass, and their gradients in float32 on the way back.
    forth = (passes + 1) * narrow * keys * others
    if job.context_method == "allgather":
        return "keys and values of all, their gradients back", forth + 4 * keys * others, passes + 2, False
    messages = (passes + 1) * others + mesh.context
    return "keys and values around the ring, their gradients back", forth + 4 * keys * mesh.context, messages, True


def bubble_fraction(job: TrainingJob, mesh: Mesh) -> float:
    """Part of a step in which a stage waits: (p-1)/(m·v+p-1), for m micro-batches that go through together in v chunks a stage.

    zbv fills two thirds of that with the gradients of weights (Qi et al. 2024, arXiv 2401.10241; assumed for ours).
    """
    idle = (mesh.pipeline - 1) / (3 if job.schedule == "zbv" else 1)
    return idle / (job.together * mesh.chunks + idle)


def _share(ranks: int) -> float:
    return (ranks - 1) / ranks


def _link(mesh: Mesh, node: Node, dimension: str) -> tuple[str, float]:
    """The slowest link of this dimension's ring, and bytes per second that one rank gets of it.

    Ranks are numbered with tensor innermost. A ring that leaves the machine crosses its network once for all its members there,
    and shares that network with the other rings of the machine.
    """
    inside = 1
    for name in reversed(DIMENSIONS):
        if name == dimension or (dimension == "shard" and name == "context"):  # which takes part in sharding
            break
        inside *= getattr(mesh, name)
    span = inside * (mesh.sharing if dimension == "shard" else getattr(mesh, dimension))
    if span <= node.gpus:
        return node.gpu.link, node.gpu.link_bytes_per_s * LINK_EFFICIENCY[node.gpu.link]
    members = max(1, node.gpus // inside)  # of one ring, in one machine
    rings = max(1, node.gpus // members)
    across = node.network_bytes_per_s / rings * LINK_EFFICIENCY[node.network]
    return node.network, min(across, node.gpu.link_bytes_per_s * LINK_EFFICIENCY[node.gpu.link])
