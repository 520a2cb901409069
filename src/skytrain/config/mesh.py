"""The mesh: the layout of ranks, what each rank holds, and the common names of layouts."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cache, cached_property
from typing import Literal

from .errors import ConfigError, SkytrainError
from .schema import ParallelConfig

DIMENSIONS = ("pipeline", "replicate", "shard", "context", "tensor")
Zero = Literal[0, 1, 2, 3]


@cache
def divisors(whole: int) -> tuple[int, ...]:
    """Return the whole numbers that divide another one, smallest first."""
    small = [part for part in range(1, math.isqrt(whole) + 1) if whole % part == 0]
    return tuple(sorted({*small, *(whole // part for part in small)}))


def nearest_divisor(whole: int, wanted: int) -> int:
    """Return the divisor to suggest in place of a number that does not divide."""
    return min(divisors(whole), key=lambda part: abs(part - wanted))


@dataclass(frozen=True)
class Mesh:
    """Degrees by dimension, outermost first: pipeline stages are furthest apart, tensor ranks share a node.

    `zero` is the ZeRO stage of the shard dimension: 1 shards optimizer state, 2 also gradients, 3 also parameters
    (as FSDP does). With `offload` the sharded state is kept in host memory.
    """

    pipeline: int = 1
    replicate: int = 1
    shard: int = 1
    context: int = 1
    tensor: int = 1
    expert: int = 1  # neighbours among the `sharing` ranks that divide the experts; it multiplies no other degree
    chunks: int = 1  # model chunks per pipeline stage; more than one means an interleaved schedule
    zero: Zero = 3
    offload: bool = False
    deepspeed: bool = False
    alone: bool = (
        False  # one rank of a mesh that would divide more if it had more ranks: it computes as many ranks would
    )

    def __post_init__(self) -> None:
        for name in (*DIMENSIONS, "expert"):
            if getattr(self, name) < 1:
                raise SkytrainError(f"mesh: {name}={getattr(self, name)}, but every degree is at least 1")

    @property
    def gpus(self) -> int:
        return self.pipeline * self.data * self.context * self.tensor

    @property
    def data(self) -> int:
        """Return the number of data-parallel ranks, which read different sequences."""
        return self.replicate * self.shard

    @property
    def sharing(self) -> int:
        """Return the number of ranks that shard one copy of the training state; context-parallel ranks are included."""
        return self.shard * self.context

    @property
    def device_degrees(self) -> dict[str, int]:
        """Return the dimensions of the device mesh, outermost first.

        Ranks that share sequences shard the state too: "shard" includes the context dimension, as its inner part.
        """
        degrees = {name: getattr(self, name) for name in DIMENSIONS if name != "context"}
        return {**degrees, "shard": self.sharing}

    @property
    def divides(self) -> bool:
        """Return whether more than data is divided; the mesh strategy or DeepSpeed then holds low-precision weights."""
        return self.deepspeed or self.offload or self.alone or self.gpus != self.replicate

    @cached_property
    def preset(self) -> str:
        """Return the preset name that `parallel=` accepts together with the degrees."""
        if self.deepspeed:
            return f"deepspeed-zero{self.zero}" + ("-offload" if self.offload and self.zero == 3 else "")
        if self.expert > 1:
            return "pp-ep-fsdp" if self.pipeline > 1 else "ep-fsdp"
        used = tuple(name for name in DIMENSIONS if getattr(self, name) > 1)
        if used in _PRESET_OF:
            return _PRESET_OF[used]
        # Combinations without a preset: use the nearest preset with other degrees.
        if self.context > 1:
            return "cp"
        if self.pipeline > 1:
            return "pp-tp-fsdp" if self.tensor > 1 else "pp-fsdp"
        return "tp-fsdp"

    def __str__(self) -> str:
        used = [f"{name}={getattr(self, name)}" for name in (*DIMENSIONS, "expert") if getattr(self, name) > 1]
        return f"{self.preset}({', '.join(used)})" if used else self.preset


_PRESET_OF: dict[tuple[str, ...], str] = {
    (): "single",
    ("replicate",): "ddp",
    ("shard",): "fsdp",
    ("replicate", "shard"): "hsdp",
    ("tensor",): "tp",
    ("shard", "tensor"): "tp-fsdp",
    ("pipeline",): "pp",
    ("pipeline", "shard"): "pp-fsdp",
    ("pipeline", "shard", "tensor"): "pp-tp-fsdp",
    ("context",): "cp",
}
DEEPSPEED: dict[str, Zero] = {
    "deepspeed-zero1": 1,
    "deepspeed-zero2": 2,
    "deepspeed-zero3": 3,
    "deepspeed-zero3-offload": 3,
}
PRESETS = (*_PRESET_OF.values(), "ep-fsdp", "pp-ep-fsdp", *DEEPSPEED)
# Model chunks per pipeline rank; interleaved-1f1b may have any other number.
CHUNKS = {"gpipe": 1, "1f1b": 1, "interleaved-1f1b": 2, "zbv": 2}
INTERLEAVED = "interleaved-1f1b"
ENDS = 2  # stages that may be the embedding or the head only, where their ranks have others
SEVERAL = 2  # stands for "the remaining processes" while their number is unknown


def most_stages(layers: int, chunks: int) -> int:
    """Return how many stages a model of so many layers can be cut into."""
    return layers + (ENDS if chunks > ENDS else 0)


def resolve_degrees(parallel: ParallelConfig, processes: int, nodes: int) -> dict[str, int]:
    """Return the degrees that `parallel` requests; their product may differ from the number of processes."""
    check_degrees(parallel)
    degrees: dict[str, int] = {name: getattr(parallel, name) for name in DIMENSIONS}
    if parallel.replicate is None:
        degrees["replicate"] = nodes if nodes > 1 else 2
    rest = next((name for name, degree in degrees.items() if degree == -1), None)
    if rest is not None:
        degrees[rest] = max(1, processes // math.prod(degree for degree in degrees.values() if degree != -1))
    return degrees


def check_degrees(parallel: ParallelConfig) -> None:
    """Raise ConfigError if a degree is 0 or more than one degree is -1 (the remaining processes)."""
    degrees = {name: getattr(parallel, name) for name in DIMENSIONS}
    for name, degree in degrees.items():
        if degree == 0:
            raise ConfigError(
                f"parallel.{name}",
                "0 is not a degree: it is at least 1, or -1 for the remaining processes",
                hint=f"try parallel.{name}=1",
            )
    rest = [name for name, degree in degrees.items() if degree == -1]
    if len(rest) > 1:
        raise ConfigError(
            f"parallel.{rest[1]}",
            f"only one degree may be -1, and parallel.{rest[0]} is",
            hint=f"try parallel.{rest[1]}=2",
        )


def make_mesh(parallel: ParallelConfig, degrees: dict[str, int]) -> Mesh:
    """Return the mesh with these degrees and the settings of `parallel`. With DeepSpeed every rank is a shard."""
    chunks = (parallel.chunks or CHUNKS[parallel.schedule]) if degrees["pipeline"] > 1 else 1
    pipeline, replicate, shard, context, tensor = (degrees[name] for name in DIMENSIONS)
    whole = math.prod(degrees.values()) == replicate
    alone = whole and any(getattr(parallel, name) == -1 for name in DIMENSIONS if name != "replicate")
    mesh = Mesh(
        pipeline=pipeline,
        replicate=replicate,
        shard=shard,
        context=context,
        tensor=tensor,
        expert=parallel.expert,
        chunks=chunks,
        offload=parallel.cpu_offload,
        alone=alone,
    )
    if parallel.name not in DEEPSPEED:
        return mesh
    shards = mesh.shard * mesh.replicate
    return replace(mesh, replicate=1, shard=shards, zero=DEEPSPEED[parallel.name], deepspeed=True)


def assumed_mesh(parallel: ParallelConfig) -> Mesh:
    """Return the mesh as far as it is known before the number of processes is; a degree of -1 counts as several."""
    if parallel.name == "auto":
        return Mesh()
    given = {name: getattr(parallel, name) for name in DIMENSIONS}
    return make_mesh(parallel, {name: SEVERAL if degree in (-1, None) else degree for name, degree in given.items()})
