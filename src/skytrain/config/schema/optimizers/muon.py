"""Muon: orthogonal updates of the blocks' matrices, AdamW for all other parameters."""

from __future__ import annotations

from typing import Any, ClassVar, Literal

from ..declare import NUMBERS, setting, settings
from ..kinds import Decay, NonNegative, PositiveFloat, Whole
from .base import OptimizerConfig, OptimizerFacts

NEWTON_SCHULZ_STEPS = 5  # of Polar Express


def _newton_schulz_flops(short: float, long: float) -> float:
    return NEWTON_SCHULZ_STEPS * (4 * short**2 * long + 2 * short**3)


@settings
class MuonConfig(OptimizerConfig):
    """Muon on the matrices between embedding and head, AdamW on everything else."""

    facts: ClassVar = OptimizerFacts(
        state_bytes=8, matrix_state_bytes=4, fused=True, whole_matrices=True, matrix_flops=_newton_schulz_flops
    )

    name: Literal["muon"] = setting(NUMBERS, "The optimizer.")
    lr: PositiveFloat = setting(NUMBERS, "Peak learning rate, as for AdamW: Muon's steps are scaled to AdamW's size.")
    embedding_lr: PositiveFloat | None = setting(
        NUMBERS, "Peak learning rate of embeddings, and of a head that is tied to them; null: `lr`."
    )
    head_lr: PositiveFloat | None = setting(NUMBERS, "Peak learning rate of a head that is not tied; null: `lr`.")
    vector_lr: PositiveFloat | None = setting(NUMBERS, "Peak learning rate of norms and biases; null: `lr`.")
    momentum: Decay = setting(NUMBERS, "Muon's momentum.")
    momentum_start: Decay | None = setting(NUMBERS, "Muon's momentum at the first step; null: `momentum`.")
    momentum_warmup: Whole = setting(NUMBERS, "Steps over which it rises to `momentum`.")
    row_beta: Decay | None = setting(
        NUMBERS,
        "NorMuon: decay of the mean square of each row of an update, by whose root the row is divided; null: plain Muon.",
    )
    beta1: Decay = setting(NUMBERS, "AdamW's decay of the mean of gradients.")
    beta2: Decay = setting(NUMBERS, "AdamW's decay of the mean of squared gradients.")
    eps: PositiveFloat = setting(NUMBERS, "AdamW's addition to the root of the mean of squared gradients.")
    weight_decay: NonNegative = setting(NUMBERS, "Decay of matrices; biases, norms and other vectors do not decay.")

    def class_path(self) -> str:
        return "skytrain.training.optimizers.muon.Muon"

    def arguments(self) -> dict[str, Any]:
        return {
            "momentum": self.momentum,
            "momentum_start": self.momentum_start,
            "momentum_warmup": self.momentum_warmup,
            "row_beta": self.row_beta,
            "betas": (self.beta1, self.beta2),
            "eps": self.eps,
        }

    def rates(self) -> dict[str, float]:
        own = {"embedding": self.embedding_lr, "head": self.head_lr, "vector": self.vector_lr}
        return {kind: rate for kind, rate in own.items() if rate is not None}


OPTIMIZER = MuonConfig
