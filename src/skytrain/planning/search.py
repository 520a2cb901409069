"""The best mesh, micro-batch and checkpointing for a model on so many GPUs, by predicted speed under the memory limit."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from skytrain.config import format_bytes

from .communication import Node
from .flops import decoder_size
from .measurements import Measurement, Prediction, predict
from .memory import Job, Memory, rank_memory, usable_bytes
from .mesh import Mesh, runnable
from .throughput import tokens_per_step

STATE_BYTES = 16  # of a parameter: itself, its gradient and AdamW's two moments in float32
SMALL = 4  # times its state is less than a GPU's memory
TIGHT = 0.92  # of the memory: beyond it a layout has to be worth the risk of running out
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
        """Whether `train` can do this today; a mesh that it lacks is a plan on paper."""
        return runnable(self.mesh)


@dataclass(frozen=True)
class NoPlacement:
    """Why nothing fits: the least that any layout needs, against what there is."""

    reason: str


@dataclass(frozen=True)
class Fixed:
    """What the search is not to choose."""

    micro_batch: int | None = None
    checkpointing: bool | None = None


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
    fixed: Fixed = Fixed(),  # noqa: B008 - frozen
    works: Callable[[Mesh], bool] = lambda _: True,
) -> Placement | NoPlacement:
    """The fastest layout of `job` whose batch is exactly `batch_tokens`; `job`'s own micro-batch and accumulation do not matter.

    Meshes that do not work with the settings are left out. Where anything is preferred (what `train` can run, say) the rest
    does not count; `mesh` fixes the mesh.
    """
    limit = usable_bytes(gpu_memory_mib)
    if mesh:
        return _fastest(job, [mesh], node, limit, batch_tokens, measurements, prefer, fixed)
    every = [one for one in meshes(job, gpus, node.gpus) if works(one)]
    if not every:
        return NoPlacement(f"no mesh of {gpus} GPUs works with these settings")
    if SMALL * STATE_BYTES * decoder_size(job.model).parameters < limit:
        # Dividing layers costs traffic in each of them; a model that one GPU holds with ease has no use for it.
        whole = [one for one in every if one.tensor == one.pipeline == one.context == 1]
        found = _fastest(job, whole, node, limit, batch_tokens, measurements, prefer, fixed)
        if isinstance(found, Placement):
            return found
    return _fastest(job, every, node, limit, batch_tokens, measurements, prefer, fixed)


def _fastest(
    job: Job,
    layouts: Sequence[Mesh],
    node: Node,
    limit: float,
    batch_tokens: int,
    measurements: Sequence[Measurement],
    prefer: Callable[[Placement], bool],
    fixed: Fixed,
) -> Placement | NoPlacement:
    best: Placement | None = None
    best_rank = (False, 0.0)
    least = float("inf")
    for layout in layouts:
        for kind in _kinds(job, layout, fixed):
            for micro_batch, accumulation in _splits(kind, layout, batch_tokens, limit, fixed):
                tried = replace(kind, micro_batch=micro_batch, accumulation=accumulation)
                memory = rank_memory(tried, layout)
                if memory.total > limit:
                    least = min(least, memory.total)
                    continue
                found = Placement(tried, layout, memory, predict(tried, layout, node, measurements))
                tight = memory.total > TIGHT * limit
                rank = (prefer(found), found.tokens_per_s * (1 - SIMPLER * (_parts(layout) + 2 * tight)))
                if rank > best_rank:
                    best, best_rank = found, rank
    if best:
        return best
    if least < float("inf"):
        return NoPlacement(f"needs {format_bytes(least)} per GPU, of {format_bytes(limit)}")
    sequences, gpus = batch_tokens // job.sequence_length, layouts[0].gpus
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


def _kinds(job: Job, mesh: Mesh, fixed: Fixed) -> Iterator[Job]:
    """With and without computing blocks again (only with, where `job` asks for it), gradients whole between micro-batches or not."""
    free = (True,) if job.checkpointing else (False, True)
    for checkpointing in free if fixed.checkpointing is None else (fixed.checkpointing,):
        yield replace(job, checkpointing=checkpointing, reduce_once=True)
        if mesh.shard > 1 and mesh.pipeline == 1:
            yield replace(job, checkpointing=checkpointing, reduce_once=False)


def _splits(job: Job, mesh: Mesh, batch_tokens: int, limit: float, fixed: Fixed) -> list[tuple[int, int]]:
    """(micro-batch, accumulation) pairs that make the batch: the largest that fits and a half and a quarter of it."""
    sequences, remainder = divmod(batch_tokens, job.sequence_length)
    if remainder or sequences % mesh.data:
        return []
    each = sequences // mesh.data
    if fixed.micro_batch is not None:
        return [] if each % fixed.micro_batch else [(fixed.micro_batch, each // fixed.micro_batch)]
    trial = replace(job, accumulation=max(2, mesh.pipeline))
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
