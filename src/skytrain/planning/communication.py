"""Bytes that ranks exchange in one optimizer step, over which link, and how long that takes.

Volumes are per rank. Ring algorithms: an all-gather or reduce-scatter of S bytes over p ranks moves S(p-1)/p,
an all-reduce twice that. DDP and ZeRO: Rajbhandari et al. 2020 (arXiv 1910.02054), section 7. Tensor and sequence
parallelism: Korthikanti et al. 2022 (arXiv 2205.05198), section 4. Pipeline bubble: Narayanan et al. 2021
(arXiv 2104.04473), section 2.2.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from .catalog import InstanceType
from .flops import decoder_size
from .hardware import Gpu, find_gpu
from .memory import TrainingJob, held_parameters, imbalance, narrow_bytes
from .mesh import DIMENSIONS, Mesh

# Fraction of a link's nominal rate that large collectives reach, and the latency of a collective in seconds. Assumed.
LINK_EFFICIENCY = {"nvlink": 0.75, "pcie": 0.5, "efa": 0.7, "tcp": 0.6}
LINK_LATENCY_SECONDS = {"nvlink": 15e-6, "pcie": 25e-6, "efa": 40e-6, "tcp": 100e-6}
HOST_BYTES_PER_S = 20e9  # between one GPU and host memory; assumed
HOST_UPDATE_BYTES = 28  # per parameter, read and written by AdamW
HOST_UPDATE_BYTES_PER_S = 100e9  # host memory bandwidth of an update on the CPU; assumed
DISK_BYTES_PER_S = 4e9  # bandwidth of local NVMe disks; assumed


@dataclass(frozen=True)
class Node:
    """The properties of one machine that matter for collectives."""

    gpu: Gpu
    gpus: int
    network_bytes_per_s: float
    efa: bool
    memory_bytes: float = math.inf  # host memory, then local disks; infinite if unknown
    disk_bytes: float = math.inf

    @classmethod
    def of(cls, instance: InstanceType) -> Node:
        return cls(
            gpu=instance.device,
            gpus=instance.gpus,
            network_bytes_per_s=instance.network_gbps * 1e9 / 8,
            efa=instance.efa_interfaces > 0,
            memory_bytes=instance.memory_gib * 2**30,
            disk_bytes=instance.nvme_gb * 1e9,
        )

    @classmethod
    def of_device(cls, device_name: str) -> Node | None:
        """Return a node with one GPU of this torch device name, or None if the GPU is not in the table."""
        gpu = find_gpu(device_name)
        return cls(gpu=gpu, gpus=1, network_bytes_per_s=1.25e9, efa=False) if gpu else None

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
    overlapped: bool  # whether it can overlap with computation
    once: bool  # once per step, after the last micro-batch, instead of in each micro-batch


def exchanges(job: TrainingJob, mesh: Mesh, node: Node) -> list[Exchange]:
    """Return all communication between ranks in one optimizer step."""
    held = held_parameters(job.model, mesh)
    layers = job.model.layers / mesh.pipeline
    micro = job.accumulation
    narrow = narrow_bytes(job.precision)
    tokens = job.micro_batch * job.sequence_length / mesh.context
    traffic: list[Exchange] = []

    def add(dimension: str, what: str, volume: float, calls: float, overlapped: bool, once: bool = False) -> None:
        link, bytes_per_s = _link(mesh, node, dimension)
        seconds = volume / bytes_per_s + calls * LINK_LATENCY_SECONDS[link]
        traffic.append(
            Exchange(
                dimension=dimension,
                what=what,
                link=link,
                bytes=volume,
                seconds=seconds,
                overlapped=overlapped,
                once=once,
            )
        )

    if mesh.replicate > 1:
        volume = 2 * 4 * held / mesh.sharing * _share(mesh.replicate)
        add("replicate", "all-reduce of gradients", volume, layers, overlapped=True, once=True)
    if mesh.sharing > 1:
        what, volume, calls, once = _shard_traffic(job, mesh, held, layers, narrow)
        add("shard", what, volume, calls, overlapped=True, once=once)
    if mesh.offload:
        traffic += _host_traffic(job, mesh, node, held / mesh.sharing)
    if mesh.tensor > 1:
        passes = 6 if job.checkpointing else 4  # attention and MLP: forward, backward, and recomputed forward
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
    if mesh.expert > 1 and job.model.experts is not None:
        add("expert", *_expert_traffic(job, mesh, tokens / mesh.tensor, narrow), overlapped=False)
    if mesh.pipeline > 1:
        volume = mesh.chunks * micro * 2 * 4 * tokens * job.model.width / mesh.tensor
        calls = 2 * micro * mesh.chunks
        add("pipeline", "activations to the next stage, gradients back", volume, calls, overlapped=True)
    return traffic


def _expert_traffic(job: TrainingJob, mesh: Mesh, tokens: float, narrow: int) -> tuple[str, float, float]:
    """Return a description, the bytes of the busiest rank and the number of collectives of tokens that go to experts and back."""
    experts = job.model.experts
    assert experts is not None
    layers = (job.model.layers - experts.dense_layers) / mesh.pipeline
    passes = 6 if job.checkpointing else 4  # there and back: forward, backward, and recomputed forward
    rows = tokens * experts.per_token * imbalance(mesh)
    volume = job.accumulation * layers * passes * narrow * rows * job.model.width * _share(mesh.expert)
    sizes = passes / 2  # ranks first tell each other how many rows come
    return "all-to-all of tokens to their experts and back", volume, job.accumulation * layers * (passes + sizes)


def _shard_traffic(
    job: TrainingJob, mesh: Mesh, held: float, layers: float, narrow: int
) -> tuple[str, float, float, bool]:
    """Return a description, the bytes, the number of collectives, and whether they happen once per step."""
    # With expert parallelism a rank's experts are shared by fewer ranks.
    routed = decoder_size(job.model).expert_parameters / mesh.pipeline
    moved = (held - routed) * _share(mesh.sharing) + routed / mesh.expert * _share(mesh.sharing // mesh.expert)
    if mesh.zero < 3:
        # Gradients travel in float32, updated weights as they are computed with.
        return "reduce-scatter of gradients, all-gather of weights", (4 + narrow) * moved, 2 * layers, True
    # Weights are gathered for the forward and the backward pass of each micro-batch; gradients are reduced once per
    # step or in each micro-batch. A pipeline stage gathers and scatters once for all its micro-batches.
    pipelined = mesh.pipeline > 1
    gathers = 1 if pipelined else 2 * job.accumulation
    scatters = 1 if pipelined or job.reduce_once else job.accumulation
    volume = (gathers * narrow + scatters * 4) * moved
    return "all-gather of weights, reduce-scatter of gradients", volume, (gathers + scatters) * layers, False


def _host_traffic(job: TrainingJob, mesh: Mesh, node: Node, held: float) -> list[Exchange]:
    """Return the traffic of an offloaded update of each rank's `held` parameters: PCIe, and host memory or disk."""
    moved = 8 * held
    ranks = min(node.gpus, mesh.gpus)
    rate = DISK_BYTES_PER_S if job.offload_to_disk else HOST_UPDATE_BYTES_PER_S
    update = HOST_UPDATE_BYTES * held * ranks
    return [
        Exchange(
            dimension="shard",
            what="gradients to the host, weights back",
            link="pcie",
            bytes=moved,
            seconds=moved / HOST_BYTES_PER_S,
            overlapped=True,
            once=True,
        ),
        Exchange(
            dimension="shard",
            what="the update on the host",
            link="pcie",
            bytes=0.0,
            seconds=update / rate,
            overlapped=False,
            once=True,
        ),
    ]


def _context_traffic(job: TrainingJob, mesh: Mesh, narrow: int) -> tuple[str, float, float, bool]:
    """Return a description, bytes per token of a rank, messages per layer and micro-batch, and whether it overlaps."""
    # forward pass, and its recomputation
    others = mesh.context - 1
    passes = 2 if job.checkpointing else 1
    queries = job.model.heads * job.model.head_width / mesh.tensor
    keys = 2 * job.model.groups * job.model.head_width / mesh.tensor
    if job.context_method == "ulysses":
        # Queries, keys and values are sent and outputs come back; KV groups are copied if there are fewer than ranks.
        copies = mesh.context / math.gcd(job.model.groups // mesh.tensor, mesh.context)
        volume = (passes + 1) * narrow * (2 * queries + keys * copies) * _share(mesh.context)
        return "heads for tokens and back", volume, 2 * (passes + 1), False
    # Keys and values for each pass, and their float32 gradients in the backward pass.
    forth = (passes + 1) * narrow * keys * others
    if job.context_method == "allgather":
        return "keys and values of all, their gradients back", forth + 4 * keys * others, passes + 2, False
    messages = (passes + 1) * others + mesh.context
    return "keys and values around the ring, their gradients back", forth + 4 * keys * mesh.context, messages, True


def bubble_fraction(job: TrainingJob, mesh: Mesh) -> float:
    """Return the idle fraction of a stage: (p-1)/(m·v+p-1), for m micro-batches per pass and v chunks per stage.

    zbv fills two thirds of it with weight gradients (Qi et al. 2024, arXiv 2401.10241; assumed for this schedule).
    """
    idle = (mesh.pipeline - 1) / (3 if job.schedule == "zbv" else 1)
    return idle / (job.together * mesh.chunks + idle)


def _share(ranks: int) -> float:
    return (ranks - 1) / ranks


def _link(mesh: Mesh, node: Node, dimension: str) -> tuple[str, float]:
    """Return the slowest link of this dimension's ring and the bytes per second that one rank gets.

    Ranks are numbered with tensor innermost. A ring that spans machines crosses the network once for all its members
    in a machine, and shares that network with the machine's other rings.
    """
    inside = mesh.tensor if dimension == "expert" else 1
    for name in reversed(DIMENSIONS) if dimension != "expert" else ():
        if name == dimension or (dimension == "shard" and name == "context"):  # context ranks take part in sharding
            break
        inside *= getattr(mesh, name)
    span = inside * (mesh.sharing if dimension == "shard" else getattr(mesh, dimension))
    if span <= node.gpus:
        return node.gpu.link, node.gpu.link_bytes_per_s * LINK_EFFICIENCY[node.gpu.link]
    members = max(1, node.gpus // inside)  # ranks of one ring in one machine
    rings = max(1, node.gpus // members)
    across = node.network_bytes_per_s / rings * LINK_EFFICIENCY[node.network]
    return node.network, min(across, node.gpu.link_bytes_per_s * LINK_EFFICIENCY[node.gpu.link])
