"""The results of a merge: losses of every model on every domain, the path between two experts, dollars."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import Any

from ..config import plural

BARRIER_WARNING = 0.05  # nats by which the path between two experts may rise before an average is doubtful


@dataclass(frozen=True)
class TaskScore:
    """A downstream score with its standard error, which a single item does not have."""

    value: float
    stderr: float | None
    items: int


@dataclass(frozen=True)
class ModelRow:
    """One model of the comparison."""

    role: str  # seed, expert, merged, ensemble or dense
    label: str
    losses: dict[str, float]  # by domain, in nats per token
    usd: float | None = None  # the cost of its run
    tasks: dict[str, TaskScore] = field(default_factory=dict)  # by task/scoring

    @property
    def mean_loss(self) -> float:
        return sum(self.losses.values()) / len(self.losses)


@dataclass(frozen=True)
class PathPoint:
    """A point on the straight line between two experts."""

    t: float
    losses: dict[str, float]

    @property
    def mean_loss(self) -> float:
        return sum(self.losses.values()) / len(self.losses)


@dataclass(frozen=True)
class MergeReport:
    """The complete comparison."""

    run: str
    method: str
    tokens: dict[str, int]  # of held-out text, by domain
    rows: list[ModelRow]
    path: list[PathPoint] = field(default_factory=list)
    path_ends: list[str] = field(default_factory=list)
    verdicts: list[str] = field(default_factory=list)

    @property
    def barrier(self) -> float | None:
        """The largest rise of the mean loss above the straight line between the ends of the path (at least 0)."""
        if not self.path:
            return None
        first = self.path[0].mean_loss
        last = self.path[-1].mean_loss
        return max(point.mean_loss - ((1 - point.t) * first + point.t * last) for point in self.path)

    def row(self, role: str) -> ModelRow | None:
        return next((each for each in self.rows if each.role == role), None)

    def to_json(self) -> dict[str, Any]:
        return {**dataclasses.asdict(self), "barrier": self.barrier}


def judge(report: MergeReport) -> list[str]:
    """Return one line for each comparison that a merge is made for, whatever its result."""
    lines: list[str] = []
    merged = report.row("merged") or report.row("ensemble")
    experts = [e for e in report.rows if e.role == "expert"]
    if merged is None:
        return lines
    name_of = {"merged": "merged", "ensemble": "the ensemble", "dense": "the dense run"}
    winner = name_of[merged.role]
    if seed := report.row("seed"):
        better = [name for name in merged.losses if merged.losses[name] < seed.losses[name]]
        lines.append(f"{winner} beats the seed on {len(better)} of {len(merged.losses)} domains ({_gap(merged, seed)})")
    for expert in experts:
        home = min(expert.losses, key=lambda name: expert.losses[name] - merged.losses[name])
        away = [name for name in expert.losses if name != home]
        won = [name for name in away if merged.losses[name] < expert.losses[name]]
        gap = merged.losses[home] - expert.losses[home]
        lines.append(
            f"{winner} beats {expert.label} on {len(won)} of {plural(len(away), 'other domain')}; on its own ({home}) "
            f"{winner} is {abs(gap):.4f} nats {'worse' if gap > 0 else 'better'}"
        )
    for role in ("ensemble", "dense"):
        if (other := report.row(role)) and other is not merged:
            verdict = "no worse than" if other.mean_loss <= merged.mean_loss else "worse than"
            lines.append(f"{name_of[role]} is {verdict} {winner} ({_gap(other, merged)})")
    if report.barrier is not None:
        height = report.barrier
        verdict = f"more than {BARRIER_WARNING}: their average is doubtful" if height > BARRIER_WARNING else "low"
        lines.append(f"barrier between {' and '.join(report.path_ends)}: {height:.4f} nats, {verdict}")
    return lines


def _gap(one: ModelRow, two: ModelRow) -> str:
    gaps = ", ".join(f"{name} {one.losses[name] - two.losses[name]:+.4f}" for name in one.losses)
    return f"difference in nats: {gaps}"
