"""The cost of a sweep's trials and final run: measured on this machine, or predicted for another."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from ..config import Config, ConfigError, Interval, has_layers, total_steps
from ..planning import (
    EVALUATION_COST,
    PlanRequest,
    decoder_flops_per_token,
    find_offers,
    load_catalog,
    planned_precision,
    saved_weight_bytes,
    seconds_ahead,
    task_tokens,
    warm_worst,
    workload_of,
)
from ..runs import Reporter
from .earlier import EarlierSweep
from .ledger import HourlyPrice
from .problem import Problem
from .setting_up import make_problem, sweep_price
from .sweeps import SweepStore
from .trials import RungShape, target_shape

CONTINGENCY = 0.05  # share of the final run's cost that is added to the margin


SAVE_BYTES_PER_SECOND = 100e6  # a slow disk or a shared network
EVALUATION_SLACK = 2.0  # validation starts cold, with a new loader
LEAST_START_SECONDS = 2.0
# Of a step on CPU cores, roughly: the part of the speed of large products that training small models reaches, and the
# time in which the operations of a layer are started, forwards and backwards.
MATRIX_SIZE = 512
SHARE_OF_PRODUCTS = 0.3
LAYER_SECONDS = 0.004


@dataclass(frozen=True)
class StepEstimate:
    """The worst of steps 10 to 19 of a dry run, and the time around its steps."""

    step_seconds: float
    first_seconds: float  # time of the first step, which compiles and allocates
    start_seconds: float  # before the first step

    @classmethod
    def of(cls, step_seconds: Sequence[float], wall_seconds: float) -> StepEstimate:
        start = max(LEAST_START_SECONDS, wall_seconds - sum(step_seconds))
        return cls(warm_worst(step_seconds), step_seconds[0], start)

    def seconds(self, config: Config, parameters: float) -> float:
        """Return the longest that a run of this configuration takes, from its start to its last checkpoint."""
        training, evaluating, saving = self._parts(config, parameters)
        # A run stops one step and one save before its limit, so both must fit in once more.
        around = 2 * self.start_seconds + 2 * self.first_seconds
        return around + training + EVALUATION_SLACK * evaluating + saving

    def probable_seconds(self, config: Config, parameters: float) -> tuple[float, float]:
        """Return the probable seconds of such a run's steps, and of everything around them."""
        training, evaluating, saving = self._parts(config, parameters)
        return training, self.start_seconds + self.first_seconds + evaluating + saving

    def _parts(self, config: Config, parameters: float) -> tuple[float, float, float]:
        """Return the seconds of training, of evaluating and of saving."""
        trainer = config.trainer
        steps = total_steps(config)
        training = steps * self.step_seconds
        evaluations = 1 + (steps // trainer.validate_every if trainer.validate_every else 0)
        batches = math.ceil(trainer.validate_tokens / trainer.batch_tokens)
        tasks = task_tokens(config.evaluation, steps) / trainer.batch_tokens * self.step_seconds * EVALUATION_COST
        evaluating = evaluations * (batches * self.step_seconds * EVALUATION_COST + 0.2) + tasks
        return training, evaluating, _save_seconds(config, parameters) * (2 + _saves(config, steps, training))

    def ending_seconds(self, config: Config, parameters: float) -> float:
        """Return what a run's budget reserves for its end; without it, the run would skip its last validation."""
        validation_steps = config.trainer.validate_tokens / config.trainer.batch_tokens
        return seconds_ahead(self.step_seconds, _save_seconds(config, parameters), steps=validation_steps)

    def usd(self, config: Config, parameters: float, price: HourlyPrice) -> float:
        return price.usd(self.seconds(config, parameters))

    def probable_usd(self, config: Config, parameters: float, price: HourlyPrice) -> tuple[float, float]:
        steps, around = self.probable_seconds(config, parameters)
        return price.charged(steps), price.charged(around)

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def _save_seconds(config: Config, parameters: float) -> float:
    """Return the seconds of a save; of a plugged-in model only the number of parameters is known."""
    weight = saved_weight_bytes(planned_precision(config.trainer.precision))
    return 0.5 + parameters * (weight + config.optimizer.facts.state_bytes) / SAVE_BYTES_PER_SECOND


def _saves(config: Config, steps: int, training_seconds: float) -> int:
    every = config.trainer.checkpoint_every
    if every is None or every == Interval():
        return 0 if every is None else math.ceil(training_seconds / 600)
    return steps // every.steps if every.steps else math.ceil(training_seconds / (every.seconds or 600))


def priced_problem(
    config: Config,
    shapes: Sequence[RungShape],
    estimates: dict[str, StepEstimate],
    price: HourlyPrice,
    earlier: Sequence[EarlierSweep] = (),
) -> tuple[Problem, float]:
    """Return the search with its prices, and what the final run may cost."""

    def usd(shape: RungShape) -> float:
        estimate = estimates[_key(shape)]
        about = (shape.config, shape.parameters)
        return price.usd(estimate.seconds(*about) + estimate.ending_seconds(*about))

    target = target_shape(config)
    # The last term is what a separate run reserves for its end.
    final = usd(RungShape(target.name, final_run(config))) * (1 + CONTINGENCY) + price.usd(config.budget.margin)
    rungs = [
        shape.rung(usd(shape), *estimates[_key(shape)].probable_usd(shape.config, shape.parameters, price))
        for shape in shapes
    ]
    return make_problem(config, target.rung(final), rungs, earlier), final if config.tune.final else 0.0


def final_run(config: Config) -> Config:
    """Return the part of the target that the final run trains."""
    steps = total_steps(config)
    return replace(config, trainer=replace(config.trainer, steps=steps - config.tune.final_from_step, tokens=None))


DryRun = Callable[[Config, Reporter], StepEstimate]  # runs twenty steps of a configuration on this machine


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
    """Return the price of an instance type, and the planner's step times on it."""
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


def guess(shapes: Sequence[RungShape]) -> dict[str, StepEstimate]:
    """Return rough step times on this machine's cores, from how fast they multiply: for a look, without torch.

    A sweep measures before it spends anything.
    """
    flops_per_s = SHARE_OF_PRODUCTS * _products_per_s()
    estimates = {}
    for shape in shapes:
        trainer = shape.config.trainer
        model = shape.config.model
        if not has_layers(model):
            raise ConfigError(
                "model.family", f"{model.name}: the work of its steps is not known", hint="--measure runs some of them"
            )
        work = decoder_flops_per_token(model, trainer.sequence_length) * trainer.batch_tokens
        seconds = work / flops_per_s + LAYER_SECONDS * (model.layers + 1)
        estimates[_key(shape)] = StepEstimate(seconds, first_seconds=2 * seconds, start_seconds=LEAST_START_SECONDS)
    return estimates


def _products_per_s() -> float:
    """Return the FLOPs in a second of the product of two matrices: the best of some tries."""
    import numpy as np

    matrix = np.ones((MATRIX_SIZE, MATRIX_SIZE), np.float32)
    best = math.inf
    for _ in range(20):
        began = time.perf_counter()
        matrix @ matrix
        best = min(best, time.perf_counter() - began)
    return 2.0 * MATRIX_SIZE**3 / best


def _key(shape: RungShape) -> str:
    """Return the name of the model and batch, which decide the time of a step."""
    return f"{shape.config.model.name}-{shape.config.trainer.batch_tokens}"


def known_estimates(sweep: SweepStore) -> dict[str, StepEstimate]:
    return {name: StepEstimate(**fields) for name, fields in (sweep.load("estimates") or {}).items()}


class _Quiet:
    """A reporter that shows only the progress of dry runs."""

    def __init__(self, reporter: Reporter) -> None:
        self.progress = reporter.progress

    def note(self, text: str) -> None:
        return

    def table(self, title: str, rows: Sequence[tuple[str, str]]) -> None:
        return
