"""Simulation of a sweep without running it: the trials that a strategy would buy if the prior were true."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from .curve import u_shape
from .problem import BELIEVED, Observation, Problem, Search, Trial
from .strategies.base import Strategy

MOST_TRIALS = 1000


def rehearse(problem: Problem, strategy: Strategy, usd: float) -> list[Observation]:
    """Return the trials in order, each at its worst-case cost. Losses are made up, so the real search may differ."""
    history: list[Observation] = []
    left = usd
    while len(history) < MOST_TRIALS:
        trial = strategy.propose(Search(problem, tuple(history), left, usd))
        if trial is None or problem.rung(trial.rung).usd > left + 1e-9:
            break
        cost = problem.rung(trial.rung).usd
        left -= cost
        history.append(Observation(trial=trial, loss=expected_loss(problem, trial), usd=cost))
    return history


def believed(problem: Problem, history: Sequence[Observation], trial: Trial) -> Observation:
    """Return how a running trial is believed to end: on the prior's U, at the height of its rung's other trials."""
    known = [one for one in history if one.trial.rung == trial.rung and one.finite]
    gaps = [one.loss - expected_loss(problem, one.trial) for one in known]
    loss = expected_loss(problem, trial) + (sum(gaps) / len(gaps) if gaps else 0.0)
    return Observation(trial=trial, loss=loss, usd=problem.rung(trial.rung).usd, extra={BELIEVED: True})


def expected_loss(problem: Problem, trial: Trial) -> float:
    """Return the prior's U over a floor that falls with size and horizon as published loss curves do."""
    rung = problem.rung(trial.rung)
    distance = np.array(math.log(trial.rate) - problem.priors.law(rung))
    floor = 2.0 + (rung.parameters / 1e8) ** -0.34 * 0.4 + (rung.tokens / 1e9) ** -0.28 * 0.4
    return float(floor + problem.priors.curvature * u_shape(np.minimum(distance, 4.0)))
