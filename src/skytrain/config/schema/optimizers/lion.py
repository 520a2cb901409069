"""Lion (Chen et al. 2023, arXiv 2302.06675): one momentum per parameter."""

from __future__ import annotations

from typing import Any, ClassVar, Literal

from ..declare import NUMBERS, setting, settings
from ..kinds import Decay, NonNegative, PositiveFloat
from .base import OptimizerConfig, OptimizerFacts


@settings
class LionConfig(OptimizerConfig):
    """Lion."""

    facts: ClassVar = OptimizerFacts(state_bytes=4)

    name: Literal["lion"] = setting(NUMBERS, "The optimizer.")
    lr: PositiveFloat = setting(NUMBERS, "Peak learning rate.")
    beta1: Decay = setting(NUMBERS, "Weight of the momentum in an update.")
    beta2: Decay = setting(NUMBERS, "Decay of the momentum.")
    weight_decay: NonNegative = setting(NUMBERS, "Decay of matrices; biases, norms and other vectors do not decay.")

    def class_path(self) -> str:
        return "skytrain.training.optimizers.lion.Lion"

    def arguments(self) -> dict[str, Any]:
        return {"betas": (self.beta1, self.beta2)}


OPTIMIZER = LionConfig
