"""The best mesh, micro-batch and checkpointing for a model on so many GPUs, by predicted speed under the memory limit."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from skytrain.config import SkytrainError, format_bytes

from .communication import Node
from .measurements import Measurement, Prediction, predict
from .memory import Job, Memory, rank_memory, usable_bytes
from .mesh import Mesh, runnable
from .throughput import tokens_per_step

SIMPLER = 0.01  # of speed that each further dimension must win: below it a simpler mesh is worth more than the model's precision


@dataclass(frozen=True)
class Placement:
    """A job laid out on GPUs, with what it needs and how fast it goes."""

    job: Job
    mesh: Mesh
    memory: Memory
    prediction: Prediction

    @property
    def tokens_per_s(self) -> float:
        return tokens_per_step(self.job, self.mesh) / self.prediction.seconds

    @property
    def runnable(self) -> bool:
        """Whether `train` can do this today; a mesh or checkpointing that it lacks is a plan on paper."""
        return runnable(self.mesh, self.job.checkpointing)


@dataclass(frozen=True)
class NoPlacement:
    """Why nothing fits: the least that any layout needs, against what there is."""

    reason: str


def largest_micro_batch(job: Job, mesh: Mesh, limit_bytes: float) -> int:
    """The most sequences of a micro-batch that fit, 0 where not even one does."""

    def fits(micro_batch: int) -> bool:
        return rank_memory(replace(job, micro_batch=micro_batch), mesh).total <= limit_bytes

    if not fits(1):
        return 0
    low, high = 1, 2
    while fits(high):
        low, high = high, high * 2
        if high > 1 << 20:
            break
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low


def best_placement(
    job: Job,
    *,
    gpus: int,
    node: Node,
    gpu_memory_mib: int,
    batch_tokens: int,
    measurements: Sequence[Measurement] = (),
    prefer: Callable[[Placement], bool] = lambda _: True,
    mesh: Mesh | None = None,
) -> Placement | NoPlacement:
    """The fastest layout of `job` whose batch is exactly `batch_tokens`; `job`'s own micro-batch and accumulation do not matter.

    Where anything is preferred (what `train` can run, say) the rest does not count; `mesh` fixes the mesh.
    """
    limit = usable_bytes(gpu_memory_mib)
    best: Placement | None = None
    best_rank = (False, 0.0)
    least = float("inf")
    for layout in [mesh] if mesh else meshes(job, gpus, node.gpus):
        for checkpointing in (False, True):
            for micro_batch, accumulation in _splits(job, layout, batch_tokens, limit, checkpointing):
                tried = replace(job, micro_batch=micro_batch, accumulation=accumulation, checkpointing=checkpointing)
                memory = rank_memory(tried, layout)
                if memory.total > limit:
                    least = min(least, memory.total)
                    continue
                found = Placement(tried, layout, memory, predict(tried, layout, node, measurements))
                rank = (prefer(found), found.tokens_per_s * (1 - SIMPLER * _parts(layout)))
                if rank > best_rank:
                    best, best_rank = found, rank
    if best:
        return best
    if least < float("inf"):
        return NoPlacement(f"needs {format_bytes(least)} per GPU, of {format_bytes(limit)}")
    sequences = batch_tokens // job.sequence_length
    return NoPlacement(f"a batch of {sequences} sequences cannot be split over {gpus} GPUs")


def meshes(job: Job, gpus: int, gpus_per_node: int) -> Iterator[Mesh]:
    """Every mesh worth trying: tensor ranks inside a node, pipelines of whole layers, context only where a sequence is long."""
    model = job.model
    for tensor in _divisors(min(gpus, gpus_per_node)):
        if gpus % tensor or model.groups % tensor or model.hidden_width % tensor or model.padded_vocab % tensor:
            continue
        for pipeline in _divisors(gpus // tensor):
            if pipeline > 1 and (pipeline > model.layers // 2 or pipeline > 64):
                continue
            for context in _divisors(gpus // tensor // pipeline):
                if context > 1 and (job.sequence_length // context < 4096 or context > 16):
                    continue
                rest = gpus // tensor // pipeline // context
                yield from _data_meshes(Mesh(pipeline=pipeline, context=context, tensor=tensor), rest, gpus_per_node)


def _data_meshes(mesh: Mesh, data: int, gpus_per_node: int) -> Iterator[Mesh]:
    """All copies, all shards, and shards inside groups of nodes with copies between them."""
    if data == 1:
        yield mesh
        return
    yield replace(mesh, replicate=data)
    yield replace(mesh, shard=data)
    for shard in _divisors(data):
        if 1 < shard < data and shard * mesh.tensor * mesh.context >= gpus_per_node:
            yield replace(mesh, replicate=data // shard, shard=shard)


def _splits(job: Job, mesh: Mesh, batch_tokens: int, limit: float, checkpointing: bool) -> list[tuple[int, int]]:
    """(micro-batch, accumulation) pairs that make the batch: the largest that fits and a half and a quarter of it."""
    sequences, remainder = divmod(batch_tokens, job.sequence_length)
    if remainder or sequences % mesh.data:
        return []
    each = sequences // mesh.data
    trial = replace(job, checkpointing=checkpointing, accumulation=max(2, mesh.pipeline))
    choices = _divisors(each)

    def too_large(micro_batch: int) -> bool:
        return rank_memory(replace(trial, micro_batch=micro_batch), mesh).total > limit

    fitting = choices[: max(1, bisect_left(choices, True, key=too_large))]
    return [(micro, each // micro) for micro in fitting[-3:]]


def _divisors(number: int) -> list[int]:
    small = [value for value in range(1, int(number**0.5) + 1) if number % value == 0]
    return sorted({*small, *(number // value for value in small)})


def _parts(mesh: Mesh) -> int:
    return sum((mesh.pipeline > 1, mesh.replicate > 1, 2 * (mesh.shard > 1), mesh.context > 1, mesh.tensor > 1))


def require_peak(node: Node) -> None:
    if node.gpu.peak_flops is None:
        raise SkytrainError(
            f"{node.gpu.name} has no verified bf16 peak, so nothing can be predicted for it before it is measured there: skytrain plan --measure"
        )
