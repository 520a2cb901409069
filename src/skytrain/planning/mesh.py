"""Meshes as `plan` names them: presets on so many GPUs, degrees in words, and the words that ask `train` for one."""

from __future__ import annotations

import math
from dataclasses import fields
from functools import lru_cache
from typing import get_args, get_type_hints

from skytrain.config import SkytrainError, nearest
from skytrain.config.mesh import DEEPSPEED, DIMENSIONS, PRESETS, Mesh
from skytrain.config.schema import ParallelConfig

__all__ = ["DIMENSIONS", "PRESETS", "Mesh", "overrides", "parse_mesh", "preset_mesh", "runnable"]


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
        return Mesh(shard=gpus, zero=DEEPSPEED[preset], offload=preset.endswith("-offload"), deepspeed=True)
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
        near = min(_divisors(gpus), key=lambda degree: abs(degree - mesh.gpus))
        name = next(iter(given), "shard")
        raise SkytrainError(
            f"mesh {text!r} uses {mesh.gpus} GPUs, but there are {gpus}\n"
            f"  try {name}={near if len(given) == 1 else 1},{'replicate' if name == 'shard' else 'shard'}=-1"
        )
    if mesh.tensor > gpus_per_node:
        raise SkytrainError(
            f"mesh {text!r}: tensor={mesh.tensor} leaves a node of {gpus_per_node} GPUs; tensor ranks talk in every layer and must share one"
        )
    return mesh


def _divisors(number: int) -> list[int]:
    return [part for part in range(1, number + 1) if number % part == 0]


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
