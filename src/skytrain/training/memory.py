"""What a model computes again or in pieces to need less memory."""

from __future__ import annotations

from typing import Any, cast

from torch import nn

from ..config import ConfigError, TrainerConfig
from ..models import Decoder, HFCausalLM
from ..models.loss import LossSettings


def apply_memory_settings(model: nn.Module, trainer: TrainerConfig) -> None:
    """Tells the model; raises where it cannot do what is asked."""
    recompute = trainer.activation_checkpointing
    if isinstance(model, Decoder):
        model.recompute = recompute
        model.loss_settings = LossSettings(trainer.z_loss, trainer.loss_chunk_tokens)
        return
    if isinstance(model, HFCausalLM) and recompute == "full":
        cast(Any, model.model).gradient_checkpointing_enable({"use_reentrant": False})
    elif recompute != "none":
        raise ConfigError(
            "trainer.activation_checkpointing",
            f"{recompute!r} is not known to {type(model).__name__}",
            hint="the built-in decoder has none, selective and full; model=hf none and full",
        )
    for name, value in (("z_loss", trainer.z_loss), ("loss_chunk_tokens", trainer.loss_chunk_tokens)):
        if value:
            raise ConfigError(
                f"trainer.{name}", f"{value} is not known to {type(model).__name__}, which has a loss of its own"
            )
