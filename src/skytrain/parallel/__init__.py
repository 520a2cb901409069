"""Parallelism: the job's processes, the mesh they form, and the one function and one Lightning strategy that apply it to a model."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .mesh import advice, check_job, resolve_mesh, step_batches, uses_deepspeed, uses_mesh_strategy, uses_process_group
from .ranks import Job, LostRank, Ranks, ToldByFirstRank

if TYPE_CHECKING:
    from .apply import Settings, parallelize
    from .strategy import MeshStrategy

__all__ = [
    "Job",
    "LostRank",
    "MeshStrategy",
    "Ranks",
    "Settings",
    "ToldByFirstRank",
    "advice",
    "check_job",
    "parallelize",
    "resolve_mesh",
    "step_batches",
    "uses_deepspeed",
    "uses_mesh_strategy",
    "uses_process_group",
]

_HOMES = {"MeshStrategy": "strategy", "Settings": "apply", "parallelize": "apply"}


def __getattr__(name: str) -> Any:
    """torch is loaded only when something that needs it is asked for."""
    import importlib

    if name in _HOMES:
        return getattr(importlib.import_module(f".{_HOMES[name]}", __name__), name)
    raise AttributeError(name)
