"""The plan of a sweep, before anything is spent. Does not load torch if the step times are predicted."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from ..aws import Ec2Instance, find_metadata
from ..config import Config
from ..planning import load_catalog
from ..runs import Reporter
from ..storage import open_store
from .costs import DryRun, guess, known_estimates, measure, missing_estimates, predict, priced_problem
from .driver import check_budget
from .earlier import find_earlier
from .ledger import Ledger
from .problem import Observation, Problem
from .rehearsal import rehearse
from .setting_up import check_axes, check_range, sweep_name, sweep_price
from .slots import check_slots
from .strategies.registry import find_strategy
from .sweeps import SweepStore
from .trials import target_shape, trial_shapes


@dataclass(frozen=True)
class Schedule:
    """The trials that a sweep would buy, before anything is spent."""

    problem: Problem
    trials: list[Observation]
    final_usd: float
    budget_usd: float
    source: str  # where the step times come from
    announced: tuple[str, ...] = ()  # what the strategy would like to buy, and what of it the money buys
    axes: tuple[str, ...] = ()  # axes that are tuned in turn: the trials are those of the first
    weighs_prices: bool = False  # whether the strategy leaves out trials that are not worth their price
    spent_usd: float = 0.0  # by earlier launches of the sweep

    @property
    def search_usd(self) -> float:
        """Return what is left for trials and the machines that run them."""
        return self.budget_usd - self.final_usd - self.spent_usd


def plan_sweep(config: Config, reporter: Reporter, dry_run: DryRun | None = None) -> Schedule:
    """Return the trials that the strategy would buy if published laws held, with their worst-case dollars.

    Step times are predicted for `tune.instance`. Of this machine they are those that the sweep has measured already, or
    measured now by `dry_run`; without it they are guessed.
    """
    axes = check_axes(config)
    if axes:
        first: Any = axes[0]
        config = replace(config, tune=replace(config.tune, axis=first))
    check_range(config)
    shapes = trial_shapes(config)
    target = target_shape(config)
    if config.tune.instance is None:
        check_slots(config)
        price = sweep_price(config, find_instance())
        estimates = known_estimates(SweepStore(open_store(config.store), sweep_name(config)))
        source = "measured on this machine"
        if missing_estimates([*shapes, target], estimates):
            if dry_run is not None:
                estimates = measure([*shapes, target], {}, reporter, dry_run)
            else:
                estimates = guess([*shapes, target])
                source = "guessed from how fast this machine multiplies (--measure runs some; a sweep always does)"
    else:
        price, estimates = predict(config, [*shapes, target])
        check_slots(config, load_catalog().instance(config.tune.instance).gpus)
        source = f"predicted for {config.tune.instance}"
    earlier = find_earlier(open_store(config.store), config, sweep_name(config))
    problem, final_usd = priced_problem(config, shapes, estimates, price, earlier)
    assert config.budget.usd is not None
    left = (config.budget.usd - final_usd) / max(1, len(axes))
    if left < min(rung.usd for rung in problem.rungs):
        store = SweepStore(open_store(config.store), sweep_name(config))
        check_budget(problem, final_usd, Ledger(store.store, store.folder, config.budget.usd))
    strategy = find_strategy(config.tune.strategy)
    trials = rehearse(problem, strategy, left)
    announce = getattr(strategy, "announce", lambda problem, usd: ())
    return Schedule(
        problem=problem,
        trials=trials,
        final_usd=final_usd,
        budget_usd=config.budget.usd,
        source=source,
        announced=tuple(announce(problem, left)),
        axes=tuple(axes),
        weighs_prices=getattr(strategy, "weighs_prices", False),
    )


def find_instance() -> Ec2Instance | None:
    metadata = find_metadata()
    try:
        return metadata.instance() if metadata is not None else None
    except OSError:
        return None
