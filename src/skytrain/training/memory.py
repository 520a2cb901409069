"""Memory: what a model recomputes or computes in chunks to need less, how torch allocates it, and how much is used."""

from __future__ import annotations

import sys

import torch
from torch import nn

from ..config import TrainerConfig, set_variables, variables
from ..models import LossSettings

ALLOCATOR_VARIABLES = ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF")  # torch's older and newer name for the same
GROWING = "expandable_segments:True"


def grow_segments() -> None:
    """Let torch's allocator grow its segments instead of adding new ones, unless the user has configured it.

    Segments of fixed size leave holes that fit no other tensor: a fifth of the GPU with activation checkpointing.
    Call this before the first tensor is on the GPU.
    """
    if variables(ALLOCATOR_VARIABLES):
        return
    set_variables({ALLOCATOR_VARIABLES[0]: GROWING})  # inherited by processes that this one starts
    if torch.cuda.is_initialized():  # torch has read the variable already
        newer = getattr(torch._C, "_accelerator_setAllocatorSettings", None)
        (newer or torch.cuda.memory._set_allocator_settings)(GROWING)


def apply_memory_settings(model: nn.Module, trainer: TrainerConfig, *, by_mesh: bool = False) -> None:
    """Apply recomputation and chunked loss to a model.

    A mesh recomputes blocks itself, inside its sharding (`by_mesh`).
    """
    save_memory = getattr(model, "save_memory", None)
    if save_memory is not None:
        recompute = "none" if by_mesh else trainer.activation_checkpointing
        save_memory(recompute, LossSettings(trainer.z_loss, trainer.loss_chunk_tokens))


def peak_resident_bytes() -> int:
    """Return the largest memory that this process has had."""
    import resource  # not on Windows

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
