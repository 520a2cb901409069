"""Search for the mesh, micro-batch and recomputation with the highest predicted speed within the memory limit."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache

from ..config import ExpertsConfig, divisors, format_bytes
from .communication import Node
from .flops import decoder_size
from .host import host_problem
from .measurements import Measurement, Prediction, is_of_gpu, predict
from .memory import (
    RECOMPUTATIONS,
    Memory,
    Recomputation,
    Schedule,
    TrainingJob,
    path_of,
    rank_memory,
    train_bytes_per_parameter,
    usable_bytes,
)
from .mesh import CHUNKS, INTERLEAVED, Mesh, most_stages
from .throughput import step_time, tokens_per_step

SCHEDULES: tuple[Schedule, ...] = ("1f1b", "interleaved-1f1b", "zbv")  # of a pipeline, that are tried
MOST_CHUNKS = 16  # of an interleaved pipeline, that are tried
UNEVEN = 1.05  # layers of the largest stage times stages, over all layers, up to which more chunks are tried
SMALL = 4  # a model is small if this many times its state is less than a GPU's memory
TIGHT = 0.92  # share of the memory beyond which a layout must be worth the risk of running out
MOST_NODES_A_GROUP = 8  # limit on nodes that share one of several copies: beyond it, all nodes may as well share one
SIMPLER = 0.01  # speedup required of each further dimension: the prediction is not precise below it


@dataclass(frozen=True)
class Placement:
    """A layout of a job on GPUs, with its memory and predicted speed."""

    job: TrainingJob
    mesh: Mesh
    memory: Memory
    prediction: Prediction

    @property
    def tokens_per_s(self) -> float:
        return tokens_per_step(self.job, self.mesh) / self.prediction.seconds


TOO_MANY = "cannot be split over"  # in the reason of a NoPlacement that more machines make worse


@dataclass(frozen=True)
class NoPlacement:
    """The result of a search in which no layout fits: the least memory that one needs, and the memory available."""

    reason: str


@dataclass(frozen=True)
class Fixed:
    """Settings that the search must not change."""

    micro_batch: int | None = None
    micro_batch_if_it_fits: bool = False  # a recipe's, which another machine may have no memory for
    recomputation: Recomputation | None = None
    reduce_once: bool | None = None
    mesh: Mesh | None = None
    schedule: bool = False  # of a pipeline: the job's, and no other
    chunks: int | None = None  # on each rank of an interleaved pipeline


@dataclass(frozen=True)
class Machines:
    """The GPUs available for a job."""

    node: Node
    gpus: int
    gpu_memory_mib: int


def largest_micro_batch(job: TrainingJob, mesh: Mesh, limit_bytes: float) -> int:
    """Return the largest micro-batch in sequences that fits, or 0 if none does."""

    def fits(micro_batch: int) -> bool:
        return rank_memory(replace(job, micro_batch=micro_batch), mesh).total <= limit_bytes

    if not fits(1):
        return 0
    low = 1
    high = 2
    while fits(high):
        low, high = high, high * 2
        if high > 1 << 20:
            break
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low


def best_placement(
    job: TrainingJob,
    machines: Machines,
    batch_tokens: int,
    *,
    measurements: Sequence[Measurement] = (),
    problem: Callable[[Placement], str | None] = lambda _: None,
    fixed: Fixed = Fixed(),  # noqa: B008 - frozen
) -> Placement | NoPlacement:
    """Return the fastest layout of `job` whose batch is exactly `batch_tokens`.

    Micro-batch and accumulation of `job` are ignored. Layouts for which `problem` returns a reason are excluded.
    """
    search = _Search(
        job=job, machines=machines, batch_tokens=batch_tokens, measurements=measurements, problem=problem, fixed=fixed
    )
    if fixed.mesh:
        return search.fastest([fixed.mesh])
    every = search.layouts
    if search.is_small:
        # Splitting layers costs traffic in each layer.
        whole = [one for one in every if one.tensor == one.pipeline == one.context == 1]
        placement = search.fastest(whole)
        if isinstance(placement, Placement):
            return placement
    return search.fastest(every)


def most_tokens_laid_out(job: TrainingJob, machines: Machines, batch_tokens: int, fixed: Fixed) -> float:
    """Return a rate that no layout of `job` exceeds on these machines; infinite where a search takes no longer."""
    search = _Search(job=job, machines=machines, batch_tokens=batch_tokens, fixed=fixed)
    return math.inf if fixed.mesh or search.is_small else max(search.most_of_each, default=0.0)


@dataclass(frozen=True)
class _Search:
    job: TrainingJob
    machines: Machines
    batch_tokens: int
    fixed: Fixed
    measurements: Sequence[Measurement] = ()
    problem: Callable[[Placement], str | None] = lambda _: None

    @cached_property
    def layouts(self) -> list[Mesh]:
        """Return all candidate meshes."""
        schedules = (self.job.schedule,) if self.fixed.schedule else SCHEDULES
        node = self.machines.node
        return list(meshes(self.job, self.machines.gpus, node.gpus, schedules, self.fixed.chunks))

    @property
    def most_of_each(self) -> tuple[float, ...]:
        """Return a rate that each of the layouts cannot exceed."""
        return _most_of_each(self.job, self.machines, self.batch_tokens, self.fixed)

    @property
    def is_small(self) -> bool:
        """Return whether the model fits on one GPU so easily that splitting its layers is pointless."""
        model = self.job.model
        state = train_bytes_per_parameter(model, self.job.optimizer) * decoder_size(model).parameters
        return SMALL * state < usable_bytes(self.machines.gpu_memory_mib)

    def fastest(self, layouts: Sequence[Mesh]) -> Placement | NoPlacement:
        node = self.machines.node
        limit = usable_bytes(self.machines.gpu_memory_mib)
        best: Placement | None = None
        best_rate = 0.0
        least = float("inf")
        reasons: dict[int, str] = {}  # by layout: why one that fits a GPU still cannot be used
        for most, number in self._most_promising(layouts):
            if best and most <= best_rate:
                break  # neither this layout nor any after it can be faster
            for tried, layout, memory in self._candidates(layouts[number]):
                if memory.total > limit:
                    least = min(least, memory.total)
                    continue
                if refused := _fp8_problem(tried, node) or host_problem(tried, layout, node):
                    reasons.setdefault(number, refused)
                    continue
                placement = Placement(tried, layout, memory, predict(tried, layout, node, self.measurements))
                tight = memory.total > TIGHT * limit
                rate = placement.tokens_per_s * (1 - SIMPLER * (_parts(layout) + 2 * tight))
                if rate > best_rate:
                    if refused := self.problem(placement):
                        reasons.setdefault(number, refused)
                    else:
                        best = placement
                        best_rate = rate
        if best:
            return best
        if reasons or least < float("inf"):
            first = reasons[min(reasons)] if reasons else None
            return NoPlacement(first or f"needs {format_bytes(least)} per GPU, of {format_bytes(limit)}")
        sequences = self.batch_tokens // self.job.sequence_length
        return NoPlacement(f"a batch of {sequences} sequences {TOO_MANY} {self.machines.gpus} GPUs")

    @property
    def _by_arithmetic(self) -> bool:
        """Return whether no measurement corrects the speed of these machines."""
        return not any(is_of_gpu(one, self.machines.node) for one in self.measurements)

    def _most_promising(self, layouts: Sequence[Mesh]) -> list[tuple[float, int]]:
        """Return a rate that each layout cannot exceed, with its number: the highest first, so that few are searched."""
        if len(layouts) < 2 or not self._by_arithmetic or _fp8_problem(self.job, self.machines.node):
            return [(math.inf, number) for number in range(len(layouts))]
        rates = self.most_of_each if layouts is self.layouts else map(self.most_tokens_per_s, layouts)
        simpler = [
            (rate * (1 - SIMPLER * _parts(mesh)), number)
            for number, (rate, mesh) in enumerate(zip(rates, layouts, strict=True))
        ]
        return sorted(simpler, key=lambda rate: (-rate[0], rate[1]))

    @cached_property
    def _freest(self) -> list[TrainingJob]:
        """Return the job with nothing recomputed, on the path of each kind of code.

        Where the host is the limit, the compiled path may be faster than fused kernels.
        """
        free = replace(self.job, checkpointing=False, selective=False, reduce_once=True)
        return [free, replace(free, fused=False)] if free.fused else [free]

    def most_tokens_per_s(self, mesh: Mesh) -> float:
        """Return the speed with memory without end: the largest micro-batch, nothing recomputed, no bubble."""
        sequences, remainder = divmod(self.batch_tokens, self.job.sequence_length)
        if remainder or sequences % mesh.data:
            return 0.0
        micro_batch = -(-sequences // mesh.data // mesh.pipeline)
        freest = self._freest if path_of(self._freest[0], mesh) == "fused" else self._freest[-1:]
        jobs = [job.split(micro_batch, mesh.pipeline) for job in freest]
        steps = [(job, step_time(job, mesh, self.machines.node)) for job in jobs]
        return max(tokens_per_step(job, mesh) / (step.seconds - step.bubble) for job, step in steps)

    def _candidates(self, layout: Mesh) -> Iterator[tuple[TrainingJob, Mesh, Memory]]:
        limit = usable_bytes(self.machines.gpu_memory_mib)
        by_arithmetic = self._by_arithmetic
        roomy: list[TrainingJob] = []  # those that fit with memory to spare
        for kind in _kinds(self.job, layout, self.fixed):
            for tried, memory in _splits(kind, layout, self.batch_tokens, limit, self.fixed):
                if by_arithmetic and any(_is_never_slower(other, tried, layout) for other in roomy):
                    continue
                if memory.total <= TIGHT * limit:
                    roomy.append(tried)
                yield tried, layout, memory


@lru_cache(maxsize=256)  # `plan --best` asks for the largest of them before it searches such machines
def _most_of_each(job: TrainingJob, machines: Machines, batch_tokens: int, fixed: Fixed) -> tuple[float, ...]:
    search = _Search(job=job, machines=machines, batch_tokens=batch_tokens, fixed=fixed)
    return tuple(map(search.most_tokens_per_s, search.layouts))


def _is_never_slower(one: TrainingJob, other: TrainingJob, mesh: Mesh) -> bool:
    """Return whether `one` is the same job with less recomputation and communication."""
    return (
        one.micro_batch == other.micro_batch
        and RECOMPUTATIONS.index(one.recomputation) <= RECOMPUTATIONS.index(other.recomputation)
        and one.reduce_once >= other.reduce_once
        and one.schedule == other.schedule
        and path_of(one, mesh) == path_of(other, mesh)
    )


def meshes(
    job: TrainingJob,
    gpus: int,
    gpus_per_node: int,
    schedules: Sequence[Schedule] = SCHEDULES,
    chunks: int | None = None,
) -> Iterator[Mesh]:
    """Yield all candidate meshes: tensor within a node, pipelines of whole layers, context only for long sequences."""
    model = job.model
    for tensor in divisors(min(gpus, gpus_per_node)):
        if gpus % tensor or model.groups % tensor or model.hidden_width % tensor or model.padded_vocab % tensor:
            continue
        for pipeline in divisors(gpus // tensor):
            if pipeline > 1 and (pipeline > model.layers // 2 or pipeline > 64):
                continue
            for context in divisors(gpus // tensor // pipeline):
                if context > 1 and (job.sequence_length // context < 4096 or context > 16):
                    continue
                rest = gpus // tensor // pipeline // context
                for parts in _chunks(model.layers, pipeline, schedules, chunks):
                    base = Mesh(pipeline=pipeline, context=context, tensor=tensor, chunks=parts, offload=job.offload)
                    for mesh in _data_meshes(base, rest, gpus_per_node):
                        yield mesh
                        yield from _expert_meshes(mesh, model.experts, gpus_per_node)


def _chunks(layers: int, pipeline: int, schedules: Sequence[Schedule], asked: int | None) -> list[int]:
    """Return the numbers of model parts on a rank that are worth a try: a schedule's own, and the most of even stages.

    More parts wait less, unless a stage has a layer more than the others, for which all of them wait.
    """
    if pipeline == 1:
        return [1]
    if asked is not None:
        return [asked] if pipeline * asked <= most_stages(layers, asked) else []
    found = {parts for parts in map(CHUNKS.__getitem__, schedules) if pipeline * parts <= layers}
    if INTERLEAVED in schedules:
        even = (parts for parts in range(MOST_CHUNKS, 2, -1) if _is_even(layers, pipeline * parts))
        found |= {next(even, 2)} if pipeline * 2 <= layers else set()
    return sorted(found)


def _is_even(layers: int, stages: int) -> bool:
    most = most_stages(layers, MOST_CHUNKS)
    return stages <= most and math.ceil(layers / stages) * stages <= UNEVEN * most


def _data_meshes(mesh: Mesh, data: int, gpus_per_node: int) -> Iterator[Mesh]:
    """Yield pure replication, full sharding, and hybrid sharding within groups of nodes."""
    if data == 1:
        yield mesh
        return
    if not mesh.offload:  # whole copies stay on the GPU
        yield replace(mesh, replicate=data)
    yield replace(mesh, shard=data)
    for shard in divisors(data):
        ranks = shard * mesh.tensor * mesh.context
        if 1 < shard < data and gpus_per_node <= ranks <= MOST_NODES_A_GROUP * gpus_per_node:
            yield replace(mesh, replicate=data // shard, shard=shard)


def _expert_meshes(mesh: Mesh, experts: ExpertsConfig | None, gpus_per_node: int) -> Iterator[Mesh]:
    """Yield the same mesh with experts divided among neighbours of a node."""
    if experts is None:
        return
    for expert in divisors(math.gcd(experts.count, mesh.sharing)):
        if expert > 1 and expert * mesh.tensor <= gpus_per_node:
            yield replace(mesh, expert=expert)


def _fp8_problem(job: TrainingJob, node: Node) -> str | None:
    """Return why fp8 is not supported on this node; None if it is, or is not requested."""
    unable = job.fp8 and not node.gpu.generation.fp8
    return f"trainer.fp8: {node.gpu.name} does not multiply fp8" if unable else None


def _kinds(job: TrainingJob, mesh: Mesh, fixed: Fixed) -> Iterator[TrainingJob]:
    """Yield variants of recomputation (no less than `job` requests), of reduction and of schedule."""
    levels: Sequence[Recomputation] = RECOMPUTATIONS[RECOMPUTATIONS.index(job.recomputation) :]
    if fixed.recomputation is not None:
        levels = (fixed.recomputation,)
    if mesh.expert > 1:  # which the capability table refuses
        levels = [level for level in levels if level != "selective"]
    schedules: Sequence[Schedule] = (job.schedule,)
    if mesh.pipeline > 1 and not fixed.schedule and fixed.mesh is None:
        schedules = [one for one in SCHEDULES if mesh.chunks == CHUNKS[one] or (one == INTERLEAVED and mesh.chunks > 1)]
    shards = mesh.shard > 1 and mesh.pipeline == 1 and not mesh.deepspeed
    once = (True, False) if shards else (True,)
    for level in levels:
        for reduce_once in once if fixed.reduce_once is None else (fixed.reduce_once,):
            for schedule in schedules:
                yield replace(
                    job,
                    checkpointing=level == "full",
                    selective=level == "selective",
                    reduce_once=reduce_once,
                    schedule=schedule,
                )


def _splits(
    job: TrainingJob, mesh: Mesh, batch_tokens: int, limit: float, fixed: Fixed
) -> list[tuple[TrainingJob, Memory]]:
    """Return the job with micro-batch sizes that divide the batch: the largest that fits and the next smaller ones."""
    sequences, remainder = divmod(batch_tokens, job.sequence_length)
    if remainder or sequences % mesh.data:
        return []
    each = sequences // mesh.data
    choices = [micro for micro in divisors(each) if _fills_pipeline(job, mesh, each // micro)]
    known: dict[int, tuple[TrainingJob, Memory]] = {}

    def split(micro_batch: int) -> tuple[TrainingJob, Memory]:
        if micro_batch not in known:
            tried = job.split(micro_batch, each // micro_batch)
            known[micro_batch] = tried, rank_memory(tried, mesh)
        return known[micro_batch]

    if fixed.micro_batch is not None:
        kept = [split(fixed.micro_batch)] if fixed.micro_batch in choices else []
        if not fixed.micro_batch_if_it_fits or (kept and kept[0][1].total <= limit):
            return kept
    fitting = choices[: max(1, bisect_left(choices, True, key=lambda micro: split(micro)[1].total > limit))]
    # Without a pipeline the largest are the fastest; with one, smaller micro-batches leave a smaller bubble.
    return [split(micro) for micro in (fitting if mesh.pipeline > 1 else fitting[-3:])]


def _fills_pipeline(job: TrainingJob, mesh: Mesh, accumulation: int) -> bool:
    """Return whether the number of micro-batches per step suits the pipeline schedule."""
    if mesh.pipeline == 1:
        return True
    together = job.pipeline_micro_batches or accumulation
    whole = accumulation % together == 0 and together >= mesh.pipeline
    return whole and (mesh.chunks == 1 or together % mesh.pipeline == 0)


def _parts(mesh: Mesh) -> int:
    return sum(
        (
            mesh.pipeline > 1,
            mesh.replicate > 1,
            2 * (mesh.shard > 1),
            mesh.context > 1,
            mesh.tensor > 1,
            mesh.expert > 1,
        )
    )
