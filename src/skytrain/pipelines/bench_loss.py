"""Bench of the price of a loss: several settings trained on one text; time, tokens and dollars to a loss, and plots."""

from __future__ import annotations

import json
import re
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ..config import BatchSizes, Config, SkytrainError, batch_sizes
from ..report import loss_svg
from ..runs import Reporter, read_metrics, result_digest
from ..storage import open_store
from .train import train

LONGEST_NAME = 100  # of what a run's name has of its settings
# Student's t for a 95% interval of a mean, by the number of seeds less one; beyond, that of the normal distribution.
T_95 = (12.71, 4.30, 3.18, 2.78, 2.57, 2.45, 2.36, 2.31, 2.26)


@dataclass(frozen=True)
class LossPoint:
    """A validation: what had been spent by then, and the loss."""

    tokens: int
    seconds: float  # of training: no evaluations, no saves, no compilation
    loss: float


@dataclass(frozen=True)
class LossRun:
    """The validations of one run, with those before the first step left out."""

    run: str
    seed: int
    points: tuple[LossPoint, ...]

    def reached(self, loss: float) -> LossPoint | None:
        """Return what the loss took, interpolated between the validations around it; None if it was not reached."""
        before: LossPoint | None = None
        for point in self.points:
            if point.loss <= loss:
                return point if before is None else _between(before, point, loss)
            before = point
        return None


@dataclass(frozen=True)
class Contender:
    """Settings that are compared with others, and their runs."""

    name: str
    runs: tuple[LossRun, ...]

    def final_loss(self) -> float:
        """Return the loss that every seed has at its end: the highest of their last ones."""
        return max(run.points[-1].loss for run in self.runs)

    def cost(self, loss: float) -> tuple[list[float], list[float]] | None:
        """Return the tokens and the seconds that each run took to the loss; None unless all reached it."""
        found = [run.reached(loss) for run in self.runs]
        points = [point for point in found if point is not None]
        return ([p.tokens for p in points], [p.seconds for p in points]) if len(points) == len(found) else None


@dataclass(frozen=True)
class LossBench:
    """The compared settings, the loss they are compared at, and the price of the machine."""

    contenders: tuple[Contender, ...]
    loss: float
    usd_per_hour: float | None

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def bench_loss(
    configs: dict[str, list[Config]],
    reporter: Reporter,
    *,
    loss: float | None = None,
    usd_per_hour: float | None = None,
) -> LossBench:
    """Train the configurations of each name, one for each seed; runs that are there already are resumed or read.

    Without a `loss` it is the final one of the first name: what the others need to get there.
    """
    contenders = tuple(
        Contender(name, tuple(_trained(name, config, reporter) for config in seeds)) for name, seeds in configs.items()
    )
    return LossBench(contenders, contenders[0].final_loss() if loss is None else loss, usd_per_hour)


def run_name(name: str, config: Config) -> str:
    """Return the name of a contender's run: its own settings and seed, and a hash of all that determine the result.

    What names cannot hold is replaced, and long ones are cut.
    """
    words = re.sub(r"[^a-z0-9.]+", "-", name.lower())[:LONGEST_NAME].strip("-")
    return "-".join(filter(None, ("loss", words, str(config.seed), result_digest(config))))


def _trained(name: str, config: Config, reporter: Reporter) -> LossRun:
    reporter.note(f"{name}, seed {config.seed}")
    trained = train(config, reporter)
    if trained.outcome != "done":
        raise SkytrainError(
            f"{trained.run} was not trained to its end: {trained.outcome}\n  the same command resumes it"
        )
    records = read_metrics(open_store(config.store.root), trained.run)
    points = loss_points(records, batch_sizes(config.trainer))
    if not points:
        raise SkytrainError(f"{trained.run} has no validation\n  set trainer.validate_every, and prepare held-out text")
    return LossRun(trained.run, config.seed, tuple(points))


def loss_points(records: Sequence[dict[str, Any]], batches: BatchSizes) -> list[LossPoint]:
    """Return the validations of a run with the training time before each.

    A step counts as long as the median one of its size: the first ones wait for compilers and caches.
    """
    by_size: dict[int, list[float]] = {}
    for record in records:
        if "perf/step_ms" in record and record["step"]:
            by_size.setdefault(batches.at(record["step"] - 1), []).append(record["perf/step_ms"] / 1e3)
    medians = {size: statistics.median(seconds) for size, seconds in by_size.items()}

    def seconds(step: int) -> float:
        return sum(count * medians.get(size, 0.0) for size, count in batches.counts(step))

    return [
        LossPoint(batches.before(record["step"]), seconds(record["step"]), record["val/loss"])
        for record in records
        if "val/loss" in record and record["step"]
    ]


def _between(before: LossPoint, after: LossPoint, loss: float) -> LossPoint:
    share = (before.loss - loss) / (before.loss - after.loss)
    tokens = round(before.tokens + share * (after.tokens - before.tokens))
    return LossPoint(tokens, before.seconds + share * (after.seconds - before.seconds), loss)


def loss_rows(bench: LossBench) -> list[tuple[str, ...]]:
    """Return the table for people: means over seeds, with 95% intervals."""
    head = ("SETTINGS", "SEEDS", "FINAL LOSS", f"TOKENS TO {bench.loss:.4f}", "MINUTES", "USD", "TIMES FASTER")
    first = bench.contenders[0].cost(bench.loss)
    rows: list[tuple[str, ...]] = [head]
    for contender in bench.contenders:
        losses = [run.points[-1].loss for run in contender.runs]
        row = [contender.name, str(len(losses)), _interval(losses, ".4f")]
        cost = contender.cost(bench.loss)
        if cost is None:
            rows.append((*row, "not reached", "-", "-", "-"))
            continue
        tokens, seconds = cost
        usd = "-"
        if bench.usd_per_hour is not None:
            usd = _interval([each / 3600 * bench.usd_per_hour for each in seconds], ".4f")
        faster = f"{statistics.mean(first[1]) / statistics.mean(seconds):.2f}" if first and any(seconds) else "-"
        minutes = _interval([each / 60 for each in seconds], ".3f")
        rows.append((*row, f"{statistics.mean(tokens) / 1e6:.2f}M", minutes, usd, faster))
    return rows


def _interval(values: Sequence[float], form: str) -> str:
    mean = statistics.mean(values)
    if len(values) < 2:
        return f"{mean:{form}}"
    t = T_95[len(values) - 2] if len(values) - 2 < len(T_95) else 1.96
    return f"{mean:{form}} ± {t * statistics.stdev(values) / len(values) ** 0.5:{form}}"


def write_bench(bench: LossBench, folder: Path) -> list[Path]:
    """Write results.json and the plots, loss over seconds and, with a price, over dollars; return the files."""
    curves = [
        (contender.name, [[(point.seconds, point.loss) for point in run.points] for run in contender.runs])
        for contender in bench.contenders
    ]
    files = {"results.json": json.dumps(bench.to_json(), indent=1) + "\n"}
    files["loss_by_seconds.svg"] = loss_svg("seconds of training", curves, bench.loss)
    if bench.usd_per_hour is not None:
        price = bench.usd_per_hour / 3600
        priced = [(name, [[(x * price, y) for x, y in run] for run in runs]) for name, runs in curves]
        files["loss_by_usd.svg"] = loss_svg("dollars", priced, bench.loss)
    for name, content in files.items():
        (folder / name).write_text(content, encoding="utf-8")
    return [folder / name for name in files]
