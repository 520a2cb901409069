"""How ranks are laid out and what each holds: degrees of parallelism, who shards the training state, and the names people know."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from functools import cached_property, lru_cache
from typing import Literal, get_args, get_type_hints

from skytrain.config import SkytrainError, nearest
from skytrain.config.schema import ParallelConfig

DIMENSIONS = ("pipeline", "replicate", "shard", "context", "tensor")
Zero = Literal[0, 1, 2, 3]


@dataclass(frozen=True)
class Mesh:
    """Degrees by dimension, outermost first: pipeline stages are furthest apart, tensor ranks share a node.

    `zero` says what the shard dimension divides, as DeepSpeed numbers it: 1 optimizer state, 2 gradients too, 3 parameters too
    (which is what FSDP does). With `offload` all of that lives in the machine's own memory.
    """

    pipeline: int = 1
    replicate: int = 1
    shard: int = 1
    context: int = 1
    tensor: int = 1
    chunks: int = 1  # of the model on each pipeline stage; more than one is the interleaved schedule
    zero: Zero = 3
    offload: bool = False
    deepspeed: bool = False

    def __post_init__(self) -> None:
        for name in DIMENSIONS:
            if getattr(self, name) < 1:
                raise SkytrainError(f"mesh: {name}={getattr(self, name)}, but every degree is at least 1")

    @property
    def gpus(self) -> int:
        return self.pipeline * self.data * self.context * self.tensor

    @property
    def data(self) -> int:
        """Ranks that read different sequences."""
        return self.replicate * self.shard

    @property
    def sharing(self) -> int:
        """Ranks that divide one copy of the training state: those of a sequence's parts hold the same weights, so they take part."""
        return self.shard * self.context

    @property
    def divides(self) -> bool:
        """Whether more than data is divided: a strategy of our own or DeepSpeed then holds the model, in lower precision."""
        return self.deepspeed or self.offload or self.gpus != self.replicate

    @cached_property
    def preset(self) -> str:
        """The name that people know, as `parallel=` takes it beside the degrees."""
        if self.deepspeed:
            return f"deepspeed-zero{self.zero}" + ("-offload" if self.offload else "")
        used = tuple(name for name in DIMENSIONS if getattr(self, name) > 1)
        if used in _PRESET_OF:
            return _PRESET_OF[used]
        # Products that have no name of their own: the preset's dimensions take other degrees.
        if self.context > 1:
            return "cp"
        if self.pipeline > 1:
            return "pp-tp-fsdp" if self.tensor > 1 else "pp-fsdp"
        return "tp-fsdp"

    def __str__(self) -> str:
        used = [f"{name}={getattr(self, name)}" for name in DIMENSIONS if getattr(self, name) > 1]
        return f"{self.preset}({', '.join(used)})" if used else "single"


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
DEEPSPEED: dict[str, tuple[Zero, bool]] = {
    "deepspeed-zero1": (1, False),
    "deepspeed-zero2": (2, False),
    "deepspeed-zero3": (3, False),
    "deepspeed-zero3-offload": (3, True),
}
PRESETS = (*_PRESET_OF.values(), *DEEPSPEED)


def preset_mesh(preset: str, gpus: int, gpus_per_node: int) -> Mesh:
    """The ordinary mesh of a preset on so many GPUs: tensor ranks fill a node, two pipeline stages, the rest shards."""
    if preset not in PRESETS:
        guess = nearest(preset, PRESETS)
        raise SkytrainError(
            f"unknown mesh {preset!r}"
            + (f"\n  did you mean {guess}?" if guess else "")
            + f"\n  one of {', '.join(PRESETS)}"
        )
    if preset in DEEPSPEED:
        zero, offload = DEEPSPEED[preset]
        return Mesh(shard=gpus, zero=zero, offload=offload, deepspeed=True)
    inside = min(gpus, gpus_per_node)
    degrees: dict[str, dict[str, int]] = {
        "single": {},
        "ddp": {"replicate": gpus},
        "fsdp": {"shard": gpus},
        "hsdp": {"replicate": gpus // inside, "shard": inside},
        "tp": {"tensor": gpus},
        "tp-fsdp": {"shard": gpus // inside, "tensor": inside},
        "pp": {"pipeline": gpus},
        "pp-fsdp": {"pipeline": 2, "shard": gpus // 2},
        "pp-tp-fsdp": {"pipeline": 2, "shard": gpus // 2 // inside, "tensor": inside},
        "cp": {"context": gpus},
    }
    wanted = degrees[preset]
    if math.prod(wanted.values()) != gpus:
        raise SkytrainError(
            f"mesh {preset} does not divide {gpus} GPUs of {gpus_per_node} a node: say its degrees, such as shard=2,tensor=4"
        )
    return _mesh(wanted)


def parse_mesh(text: str, gpus: int, gpus_per_node: int) -> Mesh:
    """A preset's name, or degrees such as `shard=2,tensor=4`; one degree may be -1, the rest of the GPUs."""
    if "=" not in text:
        return preset_mesh(text, gpus, gpus_per_node)
    degrees: dict[str, int] = {}
    for part in text.split(","):
        name, _, value = part.strip().partition("=")
        if name not in DIMENSIONS:
            guess = nearest(name, DIMENSIONS)
            raise SkytrainError(
                f"mesh {text!r}: no dimension {name!r}"
                + (f", did you mean {guess}?" if guess else "")
                + f"\n  one of {', '.join(DIMENSIONS)}"
            )
        try:
            degrees[name] = int(value)
        except ValueError:
            raise SkytrainError(f"mesh {text!r}: {name}={value!r} is not a whole number") from None
    rest = [name for name, degree in degrees.items() if degree == -1]
    if len(rest) > 1:
        raise SkytrainError(f"mesh {text!r}: only one degree may be -1")
    given = {name: degree for name, degree in degrees.items() if degree != -1}
    mesh = _mesh(given)
    if rest and gpus % mesh.gpus == 0:
        mesh = _mesh(given | {rest[0]: gpus // mesh.gpus})
    if mesh.gpus != gpus:
        raise SkytrainError(f"mesh {text!r} uses {mesh.gpus} GPUs, but there are {gpus}")
    if mesh.tensor > gpus_per_node:
        raise SkytrainError(
            f"mesh {text!r}: tensor={mesh.tensor} leaves a node of {gpus_per_node} GPUs; tensor ranks talk in every layer and must share one"
        )
    return mesh


def _mesh(degrees: dict[str, int]) -> Mesh:
    pipeline, replicate, shard, context, tensor = (degrees.get(name, 1) for name in DIMENSIONS)
    return Mesh(pipeline, replicate, shard, context, tensor)


def runnable(mesh: Mesh) -> bool:
    """Whether `train` has this preset and these dimensions today."""
    known = _fields_of_train()
    divided = all(name in known for name in DIMENSIONS if getattr(mesh, name) > 1)
    return divided and mesh.preset in _presets_of_train()


def overrides(mesh: Mesh, checkpointing: bool, reduce_once: bool) -> list[str]:
    """The words that ask `train` for this mesh."""
    degrees = [
        f"parallel.{name}={getattr(mesh, name)}" for name in DIMENSIONS if name in _fields_of_train() and mesh.gpus > 1
    ]
    kinds = ["trainer.activation_checkpointing=full"] if checkpointing else []
    if not reduce_once:
        kinds.append("parallel.reduce_once=false")
    return [f"parallel={mesh.preset}", *degrees, *kinds]


# Both read from the settings' own schema, so that they cannot lag behind it.
@lru_cache(maxsize=1)
def _presets_of_train() -> tuple[str, ...]:
    return get_args(get_type_hints(ParallelConfig, include_extras=True)["name"])


@lru_cache(maxsize=1)
def _fields_of_train() -> frozenset[str]:
    return frozenset(field.name for field in fields(ParallelConfig))
