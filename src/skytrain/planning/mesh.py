"""Meshes of plans: parse `--mesh`, resolve the mesh that `train` would form, and format it as overrides."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator

from ..config import (
    CHUNKS,
    DEEPSPEED,
    DIMENSIONS,
    INTERLEAVED,
    ConfigError,
    Mesh,
    ParallelConfig,
    SkytrainError,
    divisors,
    make_mesh,
    most_stages,
    nearest,
    resolve_degrees,
)

__all__ = [
    "CHUNKS",
    "DIMENSIONS",
    "INTERLEAVED",
    "Mesh",
    "mesh_words",
    "most_stages",
    "near_meshes",
    "overrides",
    "parallel_settings",
    "requested_mesh",
]


def mesh_words(text: str) -> list[str]:
    """Convert `--mesh` to overrides: a preset, or degrees such as `shard=2,tensor=4` (-1: the remaining GPUs)."""
    if "=" not in text:
        return [f"parallel={text}"]
    degrees = dict.fromkeys(DIMENSIONS, "1")
    for part in text.split(","):
        name, _, value = part.strip().partition("=")
        if name not in DIMENSIONS:
            guess = nearest(name, DIMENSIONS)
            raise SkytrainError(
                f"--mesh {text}: {name!r} is not a dimension"
                + (f"; did you mean {guess}?" if guess else "")
                + f"\n  one of {', '.join(DIMENSIONS)}"
            )
        if not re.fullmatch(r"-1|[1-9]\d*", value):
            raise SkytrainError(
                f"--mesh {text}: {name}={value!r} is not a degree\n  a whole number from 1, or -1 for the rest"
            )
        degrees[name] = value
    return ["parallel=single", *(f"parallel.{name}={degree}" for name, degree in degrees.items())]


def requested_mesh(parallel: ParallelConfig, gpus: int, nodes: int) -> Mesh:
    """Return the mesh that `train` would form. Raises ConfigError if it does not fit the number of GPUs."""
    degrees = resolve_degrees(parallel, gpus, nodes)
    needed = math.prod(degrees.values())
    if needed != gpus:
        product = " x ".join(f"{name} {degree}" for name, degree in degrees.items() if degree > 1) or "single"
        raise ConfigError("parallel", f"the mesh {product} is for {needed} GPUs, not {gpus}")
    return make_mesh(parallel, degrees)


def near_meshes(parallel: ParallelConfig, gpus: int, nodes: int) -> Iterator[tuple[str, Mesh]]:
    """Yield meshes near a requested one-dimensional mesh, nearest first, each with its `--mesh` text."""
    degrees = resolve_degrees(parallel, gpus, nodes)
    used = [name for name in DIMENSIONS if degrees[name] > 1]
    if len(used) != 1 or parallel.name in DEEPSPEED:
        return
    wanted = used[0]
    rest = "replicate" if used[0] == "shard" else "shard"
    for degree in sorted(divisors(gpus), key=lambda degree: abs(degree - degrees[wanted])):
        yield f"{wanted}={degree},{rest}=-1", make_mesh(parallel, degrees | {wanted: degree, rest: gpus // degree})


def parallel_settings(mesh: Mesh) -> dict[str, str | int]:
    """Return the preset and the degrees that make `train` form this mesh."""
    degrees: dict[str, str | int] = {name: getattr(mesh, name) for name in DIMENSIONS}
    if mesh.expert > 1:
        degrees["expert"] = mesh.expert
    if mesh.deepspeed:
        degrees |= {"replicate": mesh.shard, "shard": 1}
    return {"name": mesh.preset, **degrees}


def overrides(mesh: Mesh) -> list[str]:
    """Return the same settings as command-line overrides."""
    settings = parallel_settings(mesh)
    name = settings.pop("name")
    degrees = [f"parallel.{key}={degree}" for key, degree in settings.items()] if mesh.gpus > 1 else []
    offload = ["parallel.cpu_offload=true"] if mesh.offload else []
    return [f"parallel={name}", *degrees, *offload]
