"""Optuna's tree-structured Parzen estimator on one smaller setting (needs the extra `tune`)."""

from __future__ import annotations

from typing import Any

from ..problem import Answer, Rung, Search, Trial
from .base import best_observed, fallback, proxy, smaller_rungs

SPREAD = 8.0  # factor between the expected rate and both ends of the searched range
STARTUP = 3  # random rates before the estimator takes over; Optuna's ten would be the whole budget
DIVERGED_LOSS = 100.0
DRAWS = 20


class Tpe:
    name = "tpe"
    about = "Optuna's TPE on one smaller setting; the best is taken as it is"

    def propose(self, search: Search) -> Trial | None:
        rung = proxy(search, smaller_rungs(search.problem))
        if rung is None or not search.affordable(rung):
            return None
        study, distributions = _study(search, rung)
        for _ in range(DRAWS):  # in a table of runs, several draws may give the same run
            rate = study.ask(distributions).params["rate"]
            trial = Trial(rung.name, search.problem.place(rung, rate))
            if not search.tried(trial):
                return trial
        return None

    def answer(self, search: Search) -> Answer:
        rung = proxy(search, smaller_rungs(search.problem))
        return best_observed(search, rung, "TPE") if rung else fallback(search, "the budget buys no trials")


def _study(search: Search, rung: Rung) -> tuple[Any, dict[str, Any]]:
    """Return a study in memory with the trials so far; it is rebuilt for each proposal, so no state is kept."""
    import optuna

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    problem = search.problem
    seen = search.of_rung(rung.name)
    centre = problem.expected_rate(rung)
    low = max(problem.lowest, centre / SPREAD)
    high = min(problem.highest, centre * SPREAD)
    distributions: dict[str, Any] = {"rate": optuna.distributions.FloatDistribution(low, high, log=True)}
    sampler = optuna.samplers.TPESampler(seed=problem.seed + len(seen), n_startup_trials=STARTUP)
    study = optuna.create_study(sampler=sampler)
    for one in seen:
        rate = min(high, max(low, one.trial.rate))
        value = DIVERGED_LOSS if one.diverged else one.loss
        study.add_trial(optuna.trial.create_trial(params={"rate": rate}, distributions=distributions, value=value))
    return study, distributions


STRATEGY = Tpe()
