"""What the trials and the final run of a sweep cost: measured on this machine, or predicted for another."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from ..config import Config, ConfigError, total_steps
from ..planning import PlanRequest, find_offers, load_catalog, workload_of
from ..runs import Reporter
from .estimates import StepEstimate
from .ledger import HourlyPrice
from .problem import Problem
from .setting_up import make_problem, sweep_price
from .sweeps import SweepStore
from .trials import RungShape, target_shape

CONTINGENCY = 0.05  # of the final run, on top of the margin


def priced_problem(
    config: Config, shapes: Sequence[RungShape], estimates: dict[str, StepEstimate], price: HourlyPrice
) -> tuple[Problem, float]:
    """Return the search with its prices, and what the final run may cost."""

    def usd(shape: RungShape) -> float:
        estimate = estimates[_key(shape)]
        about = (shape.config, shape.parameters)
        return price.usd(estimate.seconds(*about) + estimate.ending_seconds(*about))

    target = target_shape(config)
    # The last term is what a run of its own keeps back for its end.
    final = usd(RungShape(target.name, final_run(config))) * (1 + CONTINGENCY) + price.usd(config.budget.margin)
    rungs = [
        shape.rung(usd(shape), *estimates[_key(shape)].probable_usd(shape.config, shape.parameters, price))
        for shape in shapes
    ]
    return make_problem(config, target.rung(final), rungs), final if config.tune.final else 0.0


def final_run(config: Config) -> Config:
    """Return the part of the target that the final run trains."""
    steps = total_steps(config)
    done = config.tune.final_from_step
    if done >= steps:
        raise ConfigError("tune.final_from_step", f"{done} is not below the run's {steps} steps")
    return replace(config, trainer=replace(config.trainer, steps=steps - done, tokens=None))


DryRun = Callable[[Config, Reporter], StepEstimate]  # twenty steps of a configuration on this machine


def measure(
    shapes: Sequence[RungShape], known: dict[str, StepEstimate], reporter: Reporter, dry_run: DryRun
) -> dict[str, StepEstimate]:
    """Return an estimate for each model, with a dry run for those that have none; horizons share one."""
    estimates = dict(known)
    if not estimates and shapes:
        reporter.note(f"warming up with 20 steps of {_key(shapes[0])}")
        dry_run(shapes[0].config, _Quiet(reporter))  # loads libraries and opens the device, which no trial pays for
    for shape in shapes:
        if _key(shape) not in estimates:
            reporter.note(f"measuring 20 steps of {_key(shape)}")
            estimates[_key(shape)] = dry_run(shape.config, _Quiet(reporter))
    return estimates


def missing_estimates(shapes: Sequence[RungShape], known: dict[str, StepEstimate]) -> bool:
    return any(_key(shape) not in known for shape in shapes)


def predict(config: Config, shapes: Sequence[RungShape]) -> tuple[HourlyPrice, dict[str, StepEstimate]]:
    """Return the planner's step times on an instance type, and its price."""
    catalog = load_catalog()
    estimates = {}
    request = PlanRequest(instance=config.tune.instance, nodes=1)
    usd = config.tune.usd_per_hour or config.budget.usd_per_hour
    for shape in shapes:
        if _key(shape) in estimates:
            continue
        offers = find_offers(workload_of(shape.config), catalog, request)
        placed = next((one for one in offers if one.placement is not None), None)
        if placed is None or placed.placement is None:
            problem = offers[0].problem if offers else "it is not in the catalogue"
            raise ConfigError("tune.instance", f"{config.tune.instance}: {problem}")
        if usd is None and placed.price is not None:
            usd = placed.price.usd_per_hour_max
        seconds = placed.placement.prediction.seconds
        estimates[_key(shape)] = StepEstimate(seconds, first_seconds=20.0, start_seconds=30.0)
    return sweep_price(replace(config, tune=replace(config.tune, usd_per_hour=usd)), None), estimates


def _key(shape: RungShape) -> str:
    """Return what decides the time of a step."""
    return f"{shape.config.model.name}-{shape.config.trainer.batch_tokens}"


def known_estimates(sweep: SweepStore) -> dict[str, StepEstimate]:
    return {name: StepEstimate(**fields) for name, fields in (sweep.load("estimates") or {}).items()}


class _Quiet:
    """Progress of dry runs only."""

    def __init__(self, reporter: Reporter) -> None:
        self.progress = reporter.progress

    def note(self, text: str) -> None:
        return

    def table(self, title: str, rows: Sequence[tuple[str, str]]) -> None:
        return
