"""The cost sheet of an experiment: hours and dollars of each trial, and an error if they exceed the budget."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..config import Config, SkytrainError, total_steps
from .budget import Budget
from .costs import BOOT_SECONDS, COMPILE_SECONDS, EVALUATION_COST, START_SECONDS, s3_seconds, work_of
from .measurements import SIGMA
from .offers import Offer
from .throughput import Source
from .workload import job_of

Z90 = 1.2816  # standard deviations from the median to p90
MARGIN = 0.10  # on the price: spot prices change while a sweep runs


@dataclass(frozen=True)
class PlannedTrial:
    name: str
    steps: int
    step_seconds: float  # the worst case, not the mean
    overhead_seconds: float  # start, compile, evaluation, checkpoint
    source: Source


@dataclass(frozen=True)
class CostedTrial:
    trial: PlannedTrial
    usd_per_hour: float  # including the margin
    hours: float
    usd: float


@dataclass(frozen=True)
class CostSheet:
    rows: tuple[CostedTrial, ...]
    budget_usd: float
    usd: float

    @property
    def left_usd(self) -> float:
        return self.budget_usd - self.usd


def cost_trial(trial: PlannedTrial, usd_per_hour: float, margin: float = MARGIN) -> CostedTrial:
    hours = (trial.steps * trial.step_seconds + trial.overhead_seconds) / 3600
    price = usd_per_hour * (1 + margin)
    return CostedTrial(trial, price, hours, price * hours)


def planned_trials(config: Config, offer: Offer, trials: int, trial_steps: int) -> list[PlannedTrial]:
    """Return the run itself, whose dollars are reserved first, then the trials of `trial_steps` steps, all at p90.

    Machine and data are ready after the first start; a trial pays for a new process and its own evaluation.
    """
    assert offer.placement
    prediction = offer.placement.prediction
    worst = prediction.seconds * (1 + Z90 * SIGMA[prediction.source])
    job = job_of(config)
    restart = START_SECONDS[1] + (COMPILE_SECONDS[1] if job.compiled else 0.0)
    once = BOOT_SECONDS[1] + s3_seconds(work_of(config).data_bytes, offer.instance)

    def trial(name: str, steps: int, start: float) -> PlannedTrial:
        work = work_of(config, steps)
        evaluation = (
            max(work.evaluation_tokens, config.trainer.validate_tokens)
            / config.trainer.batch_tokens
            * worst
            * EVALUATION_COST
        )
        saving = s3_seconds(work.checkpoint_bytes, offer.instance, offer.nodes)
        return PlannedTrial(
            name=name,
            steps=steps,
            step_seconds=worst,
            overhead_seconds=start + evaluation + saving,
            source=prediction.source,
        )

    last = trial("the run", total_steps(config), once + restart)
    return [last, *(trial(f"trial {number + 1}", trial_steps, restart) for number in range(trials))]


def cost_sheet(
    trials: Sequence[PlannedTrial], usd_per_hour: float, budget_usd: float, margin: float = MARGIN
) -> CostSheet:
    """Cost all trials. Raises SkytrainError with the first trial that exceeds the budget."""
    rows: list[CostedTrial] = []
    spent = 0.0
    for trial in trials:
        costed = cost_trial(trial, usd_per_hour, margin)
        if not Budget(budget_usd).covers(spent + costed.usd):
            names = f" (after {len(rows)} that cost ${spent:,.2f})" if rows else ""
            raise SkytrainError(
                f"trial {trial.name!r} would cost ${costed.usd:,.2f}{names} and pass the budget of ${budget_usd:,.2f}: "
                f"{trial.steps} steps of {trial.step_seconds * 1000:,.0f} ms at ${costed.usd_per_hour:,.3f} an hour\n"
                f"  leave out trials, shorten them, or raise budget.usd to {_round_up(sum(cost_trial(one, usd_per_hour, margin).usd for one in trials))}"
            )
        rows.append(costed)
        spent += costed.usd
    return CostSheet(tuple(rows), budget_usd, spent)


def _round_up(usd: float) -> int:
    return int(-(-usd // 1))
