"""AdamW, torch's own: two moments per parameter, one fused kernel on a GPU."""

from __future__ import annotations

from typing import Any, ClassVar, Literal

from ..declare import NUMBERS, setting, settings
from ..kinds import Decay, NonNegative, PositiveFloat
from .base import OptimizerConfig, OptimizerFacts


@settings
class AdamWConfig(OptimizerConfig):
    """AdamW."""

    facts: ClassVar = OptimizerFacts(state_bytes=8, fused=True, deepspeed_offload=True)

    name: Literal["adamw"] = setting(NUMBERS, "The optimizer.")
    lr: PositiveFloat = setting(NUMBERS, "Peak learning rate.")
    beta1: Decay = setting(NUMBERS, "Decay of the mean of gradients.")
    beta2: Decay = setting(NUMBERS, "Decay of the mean of squared gradients.")
    eps: PositiveFloat = setting(NUMBERS, "Added to the root of the mean of squared gradients.")
    weight_decay: NonNegative = setting(NUMBERS, "Decay of matrices; biases, norms and other vectors do not decay.")

    def class_path(self) -> str:
        return "torch.optim.AdamW"

    def arguments(self) -> dict[str, Any]:
        return {"betas": (self.beta1, self.beta2), "eps": self.eps}


OPTIMIZER = AdamWConfig
