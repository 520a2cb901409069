"""Muon: orthogonal updates of the blocks' matrices, AdamW for all other parameters."""

from __future__ import annotations

from typing import Any, ClassVar, Literal

from ..declare import NUMBERS, setting, settings
from ..kinds import Fraction, NonNegative, PositiveFloat
from .base import OptimizerConfig, OptimizerFacts

NEWTON_SCHULZ_STEPS = 5  # torch's default


def _newton_schulz_flops(short: float, long: float) -> float:
    return NEWTON_SCHULZ_STEPS * (4 * short**2 * long + 2 * short**3)


@settings
class MuonConfig(OptimizerConfig):
    """torch's Muon on the matrices between embedding and head, AdamW on everything else; one learning rate for both."""

    facts: ClassVar = OptimizerFacts(
        state_bytes=8, matrix_state_bytes=4, fused=True, whole_matrices=True, matrix_flops=_newton_schulz_flops
    )

    name: Literal["muon"] = setting(NUMBERS, "The optimizer.")
    lr: PositiveFloat = setting(NUMBERS, "Peak learning rate, as for AdamW: Muon's steps are scaled to AdamW's size.")
    momentum: Fraction = setting(NUMBERS, "Muon's momentum.")
    beta1: Fraction = setting(NUMBERS, "AdamW's decay of the mean of gradients.")
    beta2: Fraction = setting(NUMBERS, "AdamW's decay of the mean of squared gradients.")
    eps: PositiveFloat = setting(NUMBERS, "AdamW's addition to the root of the mean of squared gradients.")
    weight_decay: NonNegative = setting(NUMBERS, "Decay of matrices; biases, norms and other vectors do not decay.")

    def class_path(self) -> str:
        return "skytrain.training.optimizers.muon.Muon"

    def arguments(self) -> dict[str, Any]:
        return {"momentum": self.momentum, "betas": (self.beta1, self.beta2), "eps": self.eps}


OPTIMIZER = MuonConfig
