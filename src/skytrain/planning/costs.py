"""Hours and dollars of a run from the seconds of a step, including all overhead, with ranges.

Each uncertain quantity has a named distribution. `ASSUMPTIONS` lists them and marks those that were not measured.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from ..config import (
    BatchSizes,
    Config,
    EvaluationConfig,
    Interval,
    batch_sizes,
    find_tasks,
    has_layers,
    total_steps,
)
from .catalog import HOURS_PER_MONTH, InstanceType, Price, unit_prices
from .measurements import SIGMA
from .memory import checkpoint_bytes, planned_precision, update_facts
from .throughput import Source

SAMPLES = 1000  # quasi-random draws, the same for every offer, so that differences are not random

BOOT_SECONDS = (300.0, 720.0)  # from launch to first step, without data; reported as 5 to 12 minutes
COMPILE_SECONDS = (40.0, 180.0)  # torch.compile of a whole model
START_SECONDS = (10.0, 40.0)  # interpreter, CUDA, process group, first allocation
INTERRUPTIONS_PER_HOUR = 1 / 24  # per spot machine
# Per machine of 8 GPUs, whatever its market: 419 unexpected interruptions of Llama 3's training in 54 days on 16,384
# GPUs (arXiv 2407.21783, table 5).
FAILURES_PER_HOUR = 419 / (54 * 24 * 2048)
S3_FRACTION = 0.5  # of a machine's network rate, reached by S3 transfers
S3_BYTES_PER_S_MOST = 2e9
UNKNOWN_ITEMS = 1000  # items of a task whose file does not say how many it has
EVALUATION_COST = 1 / 3  # cost of a token relative to training: forward pass only
FIXED_SHARE = 0.1  # of a step's time that does not shrink with its batch: update, communication, launches; assumed
GP3_GB = 200
GP3_USD_PER_GB_MONTH = unit_prices()["gp3"].usd
EXTRAS_USD_PER_HOUR = (  # of a machine: its disk and its address
    GP3_GB * GP3_USD_PER_GB_MONTH / HOURS_PER_MONTH + unit_prices()["public-ipv4"].usd_per_hour
)
S3_PART_BYTES = 64 * 2**20
KEPT_DAYS = 30.0  # how long data and checkpoints stay in the bucket

ASSUMPTIONS = {
    "step time": "lognormal; sigma 3% measured, 8% calibrated, 20% assumed (its p10-p90 holds 92 to 97% of published runs of software that the fit had not seen)",
    "spot price": "uniform between the cheapest and the most expensive zone of the region on the day of the price; assumed to stay",
    "boot": "uniform, 5 to 12 minutes for each start; assumed",
    "compile": "uniform, 40 to 180 s for each start where trainer.compile is on; assumed",
    "interruptions": "Poisson, one in 24 machine hours on spot; assumed. Each loses a uniform part of the time since the last checkpoint",
    "failures": "Poisson, one in 6,300 hours of a machine in any market (Llama 3: 419 in 54 days on 2,048 machines); lost time as above",
    "S3": "half of the machine's network rate, at most 2 GB/s; assumed",
    "evaluation": "a third of a training token's time, for validation and downstream tasks; assumed",
    "smaller steps": f"those of trainer.batch_schedule keep {FIXED_SHARE:.0%} of a usual step's time, the rest shrinks with their tokens; assumed",
    "storage": f"{GP3_GB} GB of gp3 a machine while it runs; data and checkpoints {KEPT_DAYS:.0f} days in S3",
}


@dataclass(frozen=True)
class RunWork:
    """The work of a run besides its steps."""

    steps: int
    full_steps: float  # steps of the usual size that take as long
    tokens: int
    data_bytes: float
    local_data_bytes: float  # the part that must be on each machine's disk at once
    checkpoint_bytes: float
    checkpoint_every: Interval | None
    interrupted_seconds: float  # mean time between interruptions, for the interval `auto`
    kept_checkpoints: int
    evaluation_tokens: float
    compiled: bool


@dataclass(frozen=True)
class Estimate:
    """Medians, and the range from p10 to p90."""

    hours: float
    hours_p90: float
    usd: float
    usd_p10: float
    usd_p90: float
    interruptions: float
    parts_usd: dict[str, float]  # means


def work_of(config: Config, steps: int | None = None) -> RunWork:
    """Return the data traffic and evaluations of a configuration over `steps`, by default its own number of steps."""
    trainer = config.trainer
    model = config.model
    assert has_layers(model)
    steps = steps or min(total_steps(config), trainer.stop_at_step or total_steps(config))
    batches = batch_sizes(trainer)
    tokens = batches.before(steps)
    split = min(tokens, config.data.target_tokens or tokens)
    data_bytes = float(split * (2 if model.vocab_size <= 2**16 else 4))
    evaluations = steps // trainer.validate_every if trainer.validate_every else 0
    return RunWork(
        steps=steps,
        full_steps=full_steps(batches, steps),
        tokens=tokens,
        data_bytes=data_bytes,
        local_data_bytes=data_bytes if config.loader.shuffle == "global" else 0.0,
        checkpoint_bytes=checkpoint_bytes(model, update_facts(config), planned_precision(trainer.precision)),
        checkpoint_every=trainer.checkpoint_every,
        interrupted_seconds=trainer.interrupted_every,
        kept_checkpoints=trainer.keep_checkpoints
        + trainer.keep_best
        + (steps // trainer.keep_every if trainer.keep_every else 0),
        evaluation_tokens=float(evaluations * trainer.validate_tokens + task_tokens(config.evaluation, steps)),
        compiled=trainer.compile,
    )


def full_steps(batches: BatchSizes, steps: int) -> float:
    """Return how many steps of the usual size take as long as the first `steps` steps of a run."""
    if not batches.phases:
        return steps
    return sum(
        count * (size / batches.last + max(0.0, FIXED_SHARE * (1 - size / batches.last)))
        for size, count in batches.counts(steps)
    )


def task_tokens(evaluation: EvaluationConfig, steps: int) -> int:
    """Return the tokens that downstream tasks compute during a run: at each interval of `evaluation.every` steps,
    and after the last step.
    """
    if evaluation.every is None:
        return 0
    return tokens_of_tasks(evaluation) * -(-steps // evaluation.every)


def tokens_of_tasks(evaluation: EvaluationConfig) -> int:
    """Return the tokens that downstream tasks compute when they are scored once."""
    once = 0
    for task in find_tasks(evaluation):
        available = task.config.items or evaluation.limit or UNKNOWN_ITEMS
        once += min(available, evaluation.limit or available) * task.config.item_tokens
    return once


def s3_seconds(size: float, instance: InstanceType, nodes: int = 1) -> float:
    """Return the seconds to transfer `size` bytes between S3 and the machines, which share the work."""
    rate = min(S3_BYTES_PER_S_MOST, S3_FRACTION * instance.network_gbps * 1e9 / 8) * nodes
    return size / rate


@dataclass(frozen=True)
class RunSeconds:
    """The draws of a run's time: its parts, and its hours with all of them."""

    start: Any
    training: Any
    evaluation: Any
    saving: Any
    lost: Any  # by interruptions: starting again, and steps that are repeated
    saves: Any
    interruptions: float  # mean
    hours: Any
    hours_p50: float
    hours_p90: float


@lru_cache(maxsize=1024)
def _run_seconds(
    work: RunWork, step_seconds: float, source: Source, instance: InstanceType, nodes: int, spot: bool
) -> RunSeconds:
    """Draw the time of a whole run, which is the same in every region."""
    draw = _draws()
    step = step_seconds * np.exp(SIGMA[source] * draw["speed"])
    training = work.full_steps * step
    # Every machine downloads all shards: the order is global, so a window may be in any of them.
    download = s3_seconds(work.data_bytes, instance)
    evaluation = step * work.full_steps * EVALUATION_COST * work.evaluation_tokens / work.tokens
    save_seconds = s3_seconds(work.checkpoint_bytes, instance, nodes)
    interval = _interval_seconds(work, step, save_seconds)
    saves = np.ceil(training / interval) if interval is not None else np.ones_like(training)
    saving = saves * save_seconds
    start = _start_seconds(work.compiled) + download

    first = start + training + evaluation + saving
    stops_per_hour = FAILURES_PER_HOUR + (INTERRUPTIONS_PER_HOUR if spot else 0.0)
    interruptions = _poisson(stops_per_hour * nodes * first / 3600, draw["interruptions"], draw["many interruptions"])
    lost = interruptions * (start + draw["lost"] * (interval if interval is not None else training))
    hours = (first + lost) / 3600
    median_hours, late_hours = _quantiles(hours, 0.5, 0.9)
    return RunSeconds(
        start=start,
        training=training,
        evaluation=evaluation,
        saving=saving,
        lost=lost,
        saves=saves,
        interruptions=_mean(interruptions),
        hours=hours,
        hours_p50=median_hours,
        hours_p90=late_hours,
    )


def estimate(
    work: RunWork, step_seconds: float, source: Source, instance: InstanceType, nodes: int, price: Price
) -> Estimate:
    """Estimate the hours and dollars of a whole run at one price, over the distributions above."""
    took = _run_seconds(work, step_seconds, source, instance, nodes, price.market == "spot")
    usd_per_hour = price.usd_per_hour_min + (price.usd_per_hour_max - price.usd_per_hour_min) * _draws()["price"]
    machine = usd_per_hour * nodes * took.hours
    disks = nodes * EXTRAS_USD_PER_HOUR * took.hours
    stored_gb = (work.data_bytes + work.kept_checkpoints * work.checkpoint_bytes) / 1e9
    bucket = (
        stored_gb * unit_prices()["s3"].usd * KEPT_DAYS / 30
        + (took.saves * work.checkpoint_bytes + work.data_bytes) / S3_PART_BYTES * unit_prices()["s3-writes"].usd / 1000
    )
    rate = usd_per_hour * nodes / 3600
    parts = {
        "training": rate * took.training,
        "boot, compile, data": rate * took.start,
        "evaluation": rate * took.evaluation,
        "checkpoints": rate * took.saving,
        "restarts": rate * took.lost,
        "disks and addresses": disks,
        "S3": bucket,
    }
    low, middle, high = _quantiles(machine + disks + bucket, 0.1, 0.5, 0.9)
    return Estimate(
        hours=took.hours_p50,
        hours_p90=took.hours_p90,
        usd=middle,
        usd_p10=low,
        usd_p90=high,
        interruptions=took.interruptions,
        parts_usd={name: _mean(value) for name, value in parts.items()},
    )


@lru_cache(maxsize=2**15)  # the same for every model and batch
def most_training_seconds(
    budget_usd: float,
    hours: float,
    nodes: int,
    usd_per_hour: tuple[float, float],
    source: Source = "assumed",
    *,
    compiled: bool,
) -> float:
    """Return the median time of training that no run within the limits at p90 can exceed: it starts, and it trains.

    0 where nine of ten runs have only just started by then.
    """
    least = usd_per_hour[0] + EXTRAS_USD_PER_HOUR
    training, late = _latest_ends(source, compiled)
    number = int(np.searchsorted(late, 3600 * min(hours, budget_usd / nodes / least)))
    if not number:
        return 0.0
    above = float(training[number]) if number < len(training) else math.inf
    start = BOOT_SECONDS[0] + START_SECONDS[0]
    slow = float(late[-1] / training[-1])  # so long that the start does not count
    in_time = (3600 * hours - start) / slow
    paid = (3600 * budget_usd / nodes - least * start) / _late_usd_per_hour(usd_per_hour, source)
    return min(above, in_time, paid) * (1 + 1e-9)  # which no rounding exceeds


@lru_cache(maxsize=2**12)
def _late_usd_per_hour(usd_per_hour: tuple[float, float], source: Source) -> float:
    """Return what an hour of median speed costs at p90, where neither the price nor the speed is certain."""
    usd = _span(usd_per_hour, _draws()["price"]) + EXTRAS_USD_PER_HOUR
    return _quantiles(usd * np.exp(SIGMA[source] * _draws()["speed"]), 0.9)[0]


@lru_cache(maxsize=6)
def _latest_ends(source: Source, compiled: bool) -> tuple[Any, Any]:
    """Return times of training, and when nine of ten runs have started and trained for so long."""
    start = _start_seconds(compiled)
    pace = np.exp(SIGMA[source] * _draws()["speed"])
    training = np.concatenate([[0.0], np.geomspace(1.0, 1e10, 400)])
    return training, np.array([_quantiles(start + one * pace, 0.9)[0] for one in training])


def _start_seconds(compiled: bool) -> Any:
    """Draw the time from a launch to the first step, without the data."""
    draw = _draws()
    compiling = _span(COMPILE_SECONDS, draw["compile"]) if compiled else 0.0
    return _span(BOOT_SECONDS, draw["boot"]) + _span(START_SECONDS, draw["compile"]) + compiling


def _mean(draws: Any) -> float:
    """Return np.mean(draws), several times as fast."""
    return float(np.add.reduce(draws)) / SAMPLES


def _quantiles(draws: Any, *at: float) -> list[float]:
    """Return np.quantile(draws, at), several times as fast: a plan asks for hundreds."""
    ordered = np.sort(draws)
    found = []
    for share in at:
        below = int(share * (SAMPLES - 1))
        rest = share * (SAMPLES - 1) - below
        found.append(float(ordered[below] + rest * (ordered[below + 1] - ordered[below])))
    return found


def _interval_seconds(work: RunWork, step: Any, save_seconds: float) -> Any:
    every = work.checkpoint_every
    if every is None:
        return None
    if every.steps is not None:
        return every.steps * step
    automatic = young_daly_seconds(save_seconds, work.interrupted_seconds)
    return np.maximum(step, automatic if every.seconds is None else every.seconds)


def young_daly_seconds(save_seconds: float, seconds_between_interruptions: float) -> float:
    """Return the interval between saves that loses least time to saves and to repeated work (Young 1974, Daly 2006)."""
    return max(save_seconds, math.sqrt(2 * save_seconds * seconds_between_interruptions))


def _span(bounds: tuple[float, float], uniform: Any) -> Any:
    return bounds[0] + (bounds[1] - bounds[0]) * uniform


@lru_cache(maxsize=1)
def _draws() -> dict[str, Any]:
    """Return one fixed set of draws."""
    rng = np.random.default_rng(20260822)

    def stratified() -> Any:
        return rng.permutation((np.arange(SAMPLES) + 0.5) / SAMPLES)

    return {
        "price": stratified(),
        "speed": _normal(stratified(), stratified()),
        "boot": stratified(),
        "compile": stratified(),
        "lost": stratified(),
        "interruptions": stratified(),
        "many interruptions": _normal(stratified(), stratified()),
    }


def _normal(first: Any, second: Any) -> Any:
    """Return normal draws from two uniform ones (Box-Muller transform)."""
    return np.sqrt(-2 * np.log(first)) * np.cos(2 * math.pi * second)


def _poisson(mean: Any, uniform: Any, normal: Any) -> Any:
    """Return Poisson draws by inverting the CDF, so that they grow with the mean; normal limit for large means."""
    if float(np.min(mean)) > 50:
        return np.maximum(0.0, np.round(mean + np.sqrt(mean) * normal))
    count = np.zeros_like(mean)
    term = np.exp(-mean)
    reached = term.copy()
    while (more := (uniform > reached) & (count < 500)).any():
        count = count + more
        term = term * np.where(more, mean / np.maximum(count, 1), 1.0)
        reached = np.where(more, reached + term, reached)
    return count
