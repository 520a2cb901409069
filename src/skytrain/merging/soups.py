"""Finds the weights of an average: by held-out loss, by a domain posterior, or by the age of checkpoints."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from torch import Tensor

from ..config import SkytrainError


@dataclass(frozen=True)
class FoundWeights:
    """One weight for each model, and how they were found."""

    weights: tuple[float, ...]
    notes: tuple[str, ...] = ()


def ema_weights(count: int, decay: float) -> tuple[float, ...]:
    """Return the weights of an exponential moving average over models in their order, which starts with the first."""
    if not 0 <= decay < 1:
        raise SkytrainError(f"--decay {decay}: must be at least 0 and less than 1")
    later = [(1 - decay) * decay ** (count - 1 - number) for number in range(1, count)]
    return (decay ** (count - 1), *later)


def greedy_soup(labels: Sequence[str], loss_of: Callable[[tuple[float, ...]], float]) -> FoundWeights:
    """Add models in order of their loss, each only if it improves the equal average (arXiv 2203.05482).

    `loss_of` measures the average with given weights.
    """

    def average(members: Sequence[int]) -> tuple[float, ...]:
        return tuple(1 / len(members) if number in members else 0.0 for number in range(len(labels)))

    single = {number: loss_of(average([number])) for number in range(len(labels))}
    order = sorted(single, key=lambda number: math.inf if math.isnan(single[number]) else single[number])
    members = [order[0]]
    best = single[order[0]]
    if not math.isfinite(best):
        raise SkytrainError("no model has a finite held-out loss: there is nothing to make a soup of")
    notes = [f"{labels[order[0]]} alone: loss {best:.4f}"]
    for number in order[1:]:
        loss = loss_of(average([*members, number]))
        verdict = "added" if loss < best else "left out"
        notes.append(f"{labels[number]} {verdict}: alone {single[number]:.4f}, in the soup {loss:.4f}")
        if loss < best:
            members, best = [*members, number], loss
    return FoundWeights(average(members), tuple(notes))


def posterior_weights(labels: Sequence[str], likelihoods_kn: Tensor) -> FoundWeights:
    """Return the posterior that a window is of each expert's domain, averaged over the windows of a sample.

    `likelihoods_kn` are the log-probabilities of each window by each expert; the prior is uniform over experts.
    """
    for label, finite in zip(labels, likelihoods_kn.isfinite().all(1).tolist(), strict=True):
        if not finite:
            raise SkytrainError(
                f"{label} gives held-out text no finite probability\n  leave it out: its training diverged"
            )
    posterior_k = likelihoods_kn.double().softmax(0).mean(1)
    weights = (posterior_k / posterior_k.sum()).tolist()
    shares = ", ".join(f"{label} {weight:.3f}" for label, weight in zip(labels, weights, strict=True))
    return FoundWeights(tuple(weights), (f"posterior over {likelihoods_kn.size(1)} windows: {shares}",))
