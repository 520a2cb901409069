"""Compute-optimal tokens: the minimum of L(N, D) = E + A/N^alpha + B/D^beta at a fixed compute of 6·N·D.

Constants: Hoffmann et al. 2022 (arXiv 2203.15556), approach 3, and the replication by Besiroglu et al. 2024
(arXiv 2404.10102), who show that the original fit is off. N counts all parameters.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class LossLaw:
    name: str
    e: float
    a: float
    b: float
    alpha: float
    beta: float

    def loss(self, parameters: float, tokens: float) -> float:
        """Return nats per token on the data of the fit; differences transfer to other data better than levels."""
        return self.e + self.a / parameters**self.alpha + self.b / tokens**self.beta

    def optimal_tokens(self, parameters: float) -> float:
        """Return the tokens for which this model size is compute-optimal: alpha·A/N^alpha = beta·B/D^beta."""
        return (self.beta * self.b * parameters**self.alpha / (self.alpha * self.a)) ** (1 / self.beta)


HOFFMANN = LossLaw(name="Hoffmann 2022", e=1.69, a=406.4, b=410.7, alpha=0.34, beta=0.28)
BESIROGLU = LossLaw(name="Besiroglu 2024", e=1.8172, a=482.01, b=2085.43, alpha=0.3478, beta=0.3658)
