"""The curves of runs as data: what is drawn in a page, in a plot, and live.

A page shows every metric of every run, so a long series is thinned to buckets of equal width in steps. Each bucket keeps
its mean, its lowest and its highest value: a spike of one step in 100,000 stays visible.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ..config import BatchSizes, format_count, format_seconds
from ..runs import RunStatus

AXES = ("step", "tokens", "hours", "dollars")
MAX_RUNS = 20
BUCKETS = (200, 2000)  # fewest and most of one series
ALL_BUCKETS = 80_000  # of one page, which bounds its size
TITLES = {  # in the order of the page; all other metrics follow under their own names
    "val/loss": ("validation loss", "nats per token"),
    "train/loss": ("training loss", "nats per token"),
    "cost/usd": ("spend", "dollars"),
    "perf/tokens_per_s": ("speed", "tokens/s"),
    "perf/mfu": ("MFU", "share of the peak"),
    "train/lr": ("learning rate", ""),
    "train/grad_norm": ("gradient norm", ""),
    "perf/step_ms": ("step time", "ms"),
    "perf/memory_gb": ("memory", "GB"),
    "perf/data_wait_ms": ("wait for data", "ms"),
    "perf/straggler_ratio": ("slowest rank", "times the median"),
    "cost/usd_per_btok": ("price of tokens", "dollars per billion"),
    "val/perplexity": ("validation perplexity", ""),
    "cost/projected_usd": ("projected spend at the end", "dollars"),
    "moe/load_max": ("busiest expert, worst layer", "times the mean load"),
    "moe/entropy": ("evenness of experts, worst layer", "share of the largest entropy"),
    "moe/dropped": ("dropped rows, worst layer", "share"),
}
TASKS = "eval/"
STDERR = "_stderr"
CHANCE = "/chance"
BY_LAYER = "moe/"  # the worst layer has a curve, and the page of a run a table of all
HIDDEN = ("/items", "/truncated", STDERR, CHANCE)  # drawn with other metrics, or no curves


@dataclass(frozen=True)
class CurvePoints:
    """The finite values of one metric in order of step."""

    steps: np.ndarray
    values: np.ndarray
    not_finite: int = 0
    first_not_finite: int | None = None  # the step at which a run diverged


@dataclass(frozen=True)
class AttemptSpan:
    """One attempt on the timeline: when, where and how it ended. Times are seconds since 1970."""

    number: int
    start: float
    end: float
    host: str
    ranks: str
    ended_by: str
    state: str  # running, interrupted, failed, or the outcome


@dataclass(frozen=True)
class RunCurves:
    """A run as the pages draw it."""

    name: str
    status: RunStatus
    parameters: int
    batches: BatchSizes  # tokens of each step
    curves: Mapping[str, CurvePoints]
    attempts: Sequence[AttemptSpan] = ()
    planned_usd: float | None = None
    planned_step_seconds: float | None = None
    lineage: Sequence[tuple[str, str]] = field(default=())  # what the weights came from

    def at(self, axis: str) -> tuple[np.ndarray, np.ndarray]:
        """Return steps and the axis' value at each, for interpolation; empty where the run has not recorded it.

        Hours are those of training: steps times their duration, without start-ups and pauses between attempts.
        """
        if axis == "tokens":
            last = max(1, self.status.total_steps, self.status.step)
            counts = [count for _, count in self.batches.counts(last)]
            steps = np.cumsum([0, *counts])
            return steps.astype(float), np.array([float(self.batches.before(int(step))) for step in steps])
        metric = self.curves.get("perf/step_ms" if axis == "hours" else "cost/usd")
        if metric is None:
            return np.array([]), np.array([])
        if axis == "dollars":
            return metric.steps, np.maximum.accumulate(metric.values)
        lasted = np.diff(metric.steps, prepend=0.0) * metric.values / 3.6e6
        return np.concatenate([[0.0], metric.steps]), np.concatenate([[0.0], np.cumsum(lasted)])

    def along(self, axis: str, steps: np.ndarray) -> np.ndarray:
        """Return the axis' values at these steps; not a number where the run has not recorded it."""
        if axis == "step":
            return steps
        known, values = self.at(axis)
        return np.interp(steps, known, values) if len(known) else np.full(len(steps), math.nan)

    def chance(self, metric: str) -> float | None:
        """Return what guessing scores in the task of this metric; None for other metrics."""
        known = self.curves.get(metric.rpartition("/")[0] + CHANCE) if is_score(metric) else None
        return float(known.values[-1]) if known is not None else None


def curves_of(records: Iterable[Mapping[str, Any]]) -> dict[str, CurvePoints]:
    """Return each metric of the records, which are in order of step."""
    found: dict[str, tuple[list[int], list[float]]] = {}
    for record in records:
        step = record["step"]
        for name, value in record.items():
            if name != "step" and value is not None:
                steps, values = found.setdefault(name, ([], []))
                steps.append(step)
                values.append(value)
    return {name: _finite(np.array(steps, float), np.array(values, float)) for name, (steps, values) in found.items()}


def _finite(steps: np.ndarray, values: np.ndarray) -> CurvePoints:
    good = np.isfinite(values)
    bad = steps[~good]
    return CurvePoints(steps[good], values[good], len(bad), int(bad[0]) if len(bad) else None)


def is_score(metric: str) -> bool:
    """Return whether the metric is a share of right answers, which has a level of chance."""
    return metric.startswith(TASKS) and "acc" in metric.rpartition("/")[2].split("_")


def has_minimum(metric: str) -> bool:
    """Return whether the lowest value of the metric is the best, and is marked."""
    return any(word in metric for word in ("loss", "perplexity", "bits_per_byte", "ppl"))


def shown_metrics(runs: Iterable[RunCurves]) -> list[str]:
    """Return the metrics with a curve of their own, in the order of the page."""
    names = dict.fromkeys(name for run in runs for name, curve in run.curves.items() if len(curve.steps))
    unknown = (name for name in names if name not in TITLES and not name.startswith(BY_LAYER))
    others = sorted(name for name in unknown if not name.endswith(HIDDEN))
    others.sort(key=lambda name: not is_score(name))
    known = [name for name in TITLES if name in names]
    return [*known[:2], *(name for name in others if is_score(name)), *known[2:], *_rest(others)]


def _rest(names: Iterable[str]) -> list[str]:
    return [name for name in names if not is_score(name)]


def title_of(metric: str) -> tuple[str, str]:
    """Return the title and the unit of a metric."""
    if metric in TITLES:
        return TITLES[metric]
    if metric.startswith(TASKS):
        return metric.removeprefix(TASKS).replace("/", ", "), "share of right answers" if is_score(metric) else ""
    return metric, ""


def page_data(runs: Sequence[RunCurves]) -> dict[str, Any]:
    """Return what the script of a page draws: plain numbers and texts."""
    metrics = shown_metrics(runs)
    series = sum(name in run.curves for name in metrics for run in runs)
    buckets = int(np.clip(ALL_BUCKETS // max(1, series), *BUCKETS))
    return {
        "axes": [axis for axis in AXES if axis in ("step", "tokens") or any(len(run.at(axis)[0]) for run in runs)],
        "panels": [{"metric": name, "title": title_of(name)[0], "unit": title_of(name)[1]} for name in metrics],
        "runs": [_run_data(run, metrics, buckets) for run in runs],
    }


def _run_data(run: RunCurves, metrics: Sequence[str], buckets: int) -> dict[str, Any]:
    status = run.status
    hours, dollars = (_sampled(*run.at(axis), buckets) for axis in ("hours", "dollars"))
    return {
        "name": run.name,
        "facts": facts_of(run),
        "state": status.state,
        "steps": status.total_steps,
        "tokens": [_numbers(values) for values in run.at("tokens")],
        "hours": hours,
        "dollars": dollars,
        "budget": _number(status.budget_usd),
        "projected": _number(status.projected_usd),
        "curves": {name: _curve_data(run, name, buckets) for name in metrics if name in run.curves},
        "attempts": [
            {
                "number": each.number,
                "start": each.start,
                "end": each.end,
                "state": each.state,
                "text": f"attempt {each.number} on {each.host}, {each.ranks}: {each.ended_by}",
            }
            for each in run.attempts
        ],
    }


def _curve_data(run: RunCurves, metric: str, buckets: int) -> dict[str, Any]:
    curve = run.curves[metric]
    drawn = thinned_curve(curve, buckets)
    data: dict[str, Any] = {name: _numbers(values) for name, values in drawn.items()}
    if has_minimum(metric) and len(curve.steps):
        lowest = int(np.argmin(curve.values))
        data["lowest"] = _numbers([curve.steps[lowest], curve.values[lowest]])
    if curve.not_finite:
        data["not_finite"] = [curve.first_not_finite, curve.not_finite]
    errors = run.curves.get(metric + STDERR)
    if errors is not None and "low" not in data:
        data["errors"] = _numbers(np.interp(curve.steps, errors.steps, errors.values)) if len(errors.steps) else []
    if (chance := run.chance(metric)) is not None:
        data["chance"] = chance
    return data


def thinned_curve(curve: CurvePoints, buckets: int) -> dict[str, np.ndarray]:
    """Return at most `2 * buckets` points as they are, or the buckets' steps, means, lowest and highest values."""
    if len(curve.steps) <= 2 * buckets:
        return {"x": curve.steps, "y": curve.values}
    first = curve.steps[0]
    width = (curve.steps[-1] - first) / buckets
    place = np.minimum(((curve.steps - first) / width).astype(int), buckets - 1)
    starts = np.flatnonzero(np.diff(place, prepend=-1))
    counts = np.diff(np.append(starts, len(place)))
    return {
        "x": np.add.reduceat(curve.steps, starts) / counts,
        "y": np.add.reduceat(curve.values, starts) / counts,
        "low": np.minimum.reduceat(curve.values, starts),
        "high": np.maximum.reduceat(curve.values, starts),
    }


def facts_of(run: RunCurves) -> list[tuple[str, str]]:
    """Return the row of a run in the table of runs: planned beside actual."""
    status = run.status
    validation = run.curves.get("val/loss")
    steps, hours = run.at("hours")
    planned = run.planned_step_seconds
    best = int(np.argmin(validation.values)) if validation is not None and len(validation.values) else None
    return [
        ("state", status.state),
        ("parameters", format_count(run.parameters)),
        (
            "steps",
            f"{status.step:,}" if status.step == status.total_steps else f"{status.step:,} of {status.total_steps:,}",
        ),
        ("tokens", format_count(run.batches.before(status.step))),
        ("training loss", "-" if status.loss is None else f"{status.loss:.4f}"),  # nan, where a run diverged
        (
            "lowest validation loss",
            f"{validation.values[best]:.4f} at {validation.steps[best]:,.0f}"
            if best is not None and validation is not None
            else "-",
        ),
        ("tokens/s", format_count(status.tokens_per_s) if status.tokens_per_s else "-"),
        ("MFU", _form(status.mfu, ".1%")),
        ("training time", format_seconds(round(hours[-1] * 3600)) if len(steps) else "-"),
        ("planned time", format_seconds(round(planned * status.total_steps)) if planned else "-"),
        ("dollars", _form(status.usd, ".2f")),
        ("planned dollars", _form(run.planned_usd, ".2f")),
        ("projected", "-" if status.state == "done" else _form(status.projected_usd, ".2f")),
        ("budget", _form(status.budget_usd, ".2f")),
        ("attempts", f"{status.attempts}" + (f" ({status.interruptions} interrupted)" if status.interruptions else "")),
    ]


def _form(value: float | None, form: str) -> str:
    return "-" if value is None or not math.isfinite(value) else format(value, form)


def _number(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None


def _sampled(steps: np.ndarray, values: np.ndarray, most: int) -> list[list[float]]:
    """Return a rising line of at most `most` points, its ends included."""
    if len(steps) > most:
        chosen = np.unique(np.linspace(0, len(steps) - 1, most).astype(int))
        steps, values = steps[chosen], values[chosen]
    return [_numbers(steps), _numbers(values)]


def _numbers(values: Iterable[float]) -> list[float]:
    """Return six digits of each, which a screen cannot tell from all of them."""
    return [float(f"{value:.6g}") if abs(value) < 1e5 else round(float(value), 1) for value in values]
