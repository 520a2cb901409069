"""How memory is used: what a model computes again or in pieces to need less, and how torch takes it from the GPU."""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import nn

from ..config import TrainerConfig, set_variables, variables
from ..models import Decoder, HFCausalLM, LossSettings

ALLOCATOR_VARIABLES = ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF")  # torch's older and newer name for the same
GROWING = "expandable_segments:True"


def grow_segments() -> None:
    """Lets torch's allocator grow its segments instead of asking for new ones, unless the user has set it otherwise.

    Segments of fixed size leave holes that no other tensor fits: with activation checkpointing a fifth of the GPU. Must be
    called before the first tensor on the GPU.
    """
    if variables(ALLOCATOR_VARIABLES):
        return
    set_variables({ALLOCATOR_VARIABLES[0]: GROWING})  # for processes that this one starts, too
    if torch.cuda.is_initialized():  # by then the variable has been read
        newer = getattr(torch._C, "_accelerator_setAllocatorSettings", None)
        (newer or torch.cuda.memory._set_allocator_settings)(GROWING)


def apply_memory_settings(model: nn.Module, trainer: TrainerConfig, *, by_mesh: bool = False) -> None:
    """Tells the model; what it cannot do the capability rules have refused. A mesh recomputes blocks itself, inside its sharding."""
    recompute = "none" if by_mesh else trainer.activation_checkpointing
    if isinstance(model, Decoder):
        model.recompute = recompute
        model.loss_settings = LossSettings(trainer.z_loss, trainer.loss_chunk_tokens)
    elif isinstance(model, HFCausalLM):
        if recompute == "full":
            cast(Any, model.model).gradient_checkpointing_enable({"use_reentrant": False})
        model.loss_settings = LossSettings(trainer.z_loss, trainer.loss_chunk_tokens)
        if trainer.loss_chunk_tokens:
            model.check_chunks()
