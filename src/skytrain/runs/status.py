"""The status of a run, from its records in the store; its processes are not contacted."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from datetime import UTC, datetime
from typing import Any

from ..config import DONE, INTERRUPTED
from ..storage import MOST, Store, is_time
from .attempts import attempt_numbers, read_attempt, read_failure, read_outcome
from .meter import Count, HostSpends, command_spends, largest_counts, last_records, settled_counts
from .metrics import last_metrics
from .record import load_run

STALE_SECONDS = 60.0  # a running attempt writes every five
START_SECONDS = 600.0  # before its first heartbeat it may have to download a checkpoint


@dataclass(frozen=True)
class RunStatus:
    """The status of one run; unknown values are None."""

    run: str
    # launched, starting, running, stale (silent for a while), failed, done, stopped, budget, interrupted, not started,
    # launch failed, preparing, prepared, tuning, tuned, damaged
    state: str
    reason: str | None = None  # why the run failed, or which record is damaged
    since: str | None = None  # time of the last heartbeat, or of the end
    step: int = 0
    total_steps: int = 0
    loss: float | None = None
    val_loss: float | None = None
    tokens_per_s: float | None = None
    mfu: float | None = None
    usd: float | None = None
    metered_usd: float | None = None  # where `usd` is EC2's own count of ended machines: what the meter had counted
    projected_usd: float | None = None
    budget_usd: float | None = None
    machine_seconds: float = 0.0
    eta_seconds: float | None = None
    checkpoint_step: int | None = None
    checkpoint_age_seconds: float | None = None
    attempts: int = 0
    interruptions: int = 0  # involuntary ends: signals, notices, errors, crashes, lost machines
    slowest_rank: int | None = None
    straggler_ratio: float | None = None
    host: str | None = None
    generation: int | None = None  # of the newest attempt, where node agents run it
    cause: str | None = None  # why the newest attempt ended on purpose

    def __post_init__(self) -> None:
        """Raise TypeError for values of another kind: they come from records that machines write, and are computed with."""
        wrong = [each.name for each in fields(self) if not _fits(getattr(self, each.name), str(each.type))]
        if wrong:
            raise TypeError(f"{wrong[0]} of a run cannot be {getattr(self, wrong[0])!r:.60}")


KINDS: dict[str, type | tuple[type, ...]] = {"str": str, "int": int, "float": (int, float), "None": type(None)}


def _fits(value: Any, kind: str) -> bool:
    """Return whether a value is of one of these kinds, such as `float | None`."""
    if isinstance(value, bool) or not any(isinstance(value, KINDS[word]) for word in kind.split(" | ")):
        return False
    return not isinstance(value, int) or abs(value) < MOST


def run_status(store: Store, name: str, total_steps: int, checkpoint: tuple[int, str] | None = None) -> RunStatus:
    """Return the status of a run. `checkpoint` is the step and commit time of the newest committed checkpoint."""
    record = load_run(store, name)
    numbers = attempt_numbers(store, name)
    now = datetime.now(UTC)
    outcomes = {number: read_outcome(store, name, number) for number in numbers}
    beats = last_records(store, name, "spend")
    newest = numbers[-1] if numbers else None
    begun = read_attempt(store, name, newest) if newest is not None else {}
    failure = read_failure(store, name, newest) if newest is not None else None
    state, since = _state(newest, begun, outcomes.get(newest) if newest is not None else None, beats, now)
    if failure is not None:
        state = "failed"
        since = failure.failed_at
    metrics = last_metrics(store, name)
    step = max([metrics.get("step", 0), *([checkpoint[0]] if checkpoint else [])])
    beat = beats.get(newest, {}) if newest is not None else {}
    # Hosts that wait, and those that have left since the last attempt, have recorded their own cost.
    counts = largest_counts([*beats.values(), *HostSpends(store, name).read(), *command_spends(store, name)])
    metered = _usd(counts, beat)
    settled = settled_counts(store, name, counts)
    counts = settled or counts
    usd = metered if settled is None else _usd(counts, beat)
    return RunStatus(
        run=name,
        state=state,
        reason=failure.reason if failure else None,
        since=since,
        step=step,
        total_steps=total_steps,
        loss=metrics.get("train/loss"),
        val_loss=metrics.get("val/loss"),
        tokens_per_s=metrics.get("perf/tokens_per_s"),
        mfu=metrics.get("perf/mfu"),
        usd=usd,
        metered_usd=None if settled is None else metered,
        projected_usd=usd if state == DONE else _projected(metrics, usd),
        budget_usd=record.config.get("budget", {}).get("usd"),
        machine_seconds=sum(count.seconds for count in counts.values()),
        eta_seconds=_eta(metrics, total_steps - step) if state == "running" else None,
        checkpoint_step=checkpoint[0] if checkpoint else None,
        checkpoint_age_seconds=(now - datetime.fromisoformat(checkpoint[1])).total_seconds() if checkpoint else None,
        attempts=len(numbers),
        interruptions=_interruptions(outcomes, state),
        slowest_rank=_whole(metrics.get("perf/slowest_rank")),
        straggler_ratio=metrics.get("perf/straggler_ratio"),
        host=begun.get("host"),
        generation=begun.get("generation"),
        cause=_cause(outcomes.get(newest) if newest is not None else None),
    )


def _state(
    newest: int | None,
    begun: dict[str, Any],
    outcome: dict[str, Any] | None,
    beats: dict[int, dict[str, Any]],
    now: datetime,
) -> tuple[str, str | None]:
    if newest is None:
        return "not started", None
    if outcome is not None:
        return outcome["outcome"], outcome["ended_at"]
    starting = newest not in beats
    heard = (begun if starting else beats[newest]).get("started_at" if starting else "at")
    if heard is None or not is_time(heard):  # whoever can write to the store decides it
        return "stale", None
    # A host whose clock is ahead does not make a run stale.
    if (now - datetime.fromisoformat(heard)).total_seconds() > (START_SECONDS if starting else STALE_SECONDS):
        return "stale", heard
    return ("starting", None) if starting else ("running", heard)


def _usd(counts: dict[str, Count], beat: dict[str, Any]) -> float | None:
    """Return the dollars spent, or None if no attempt knew a price."""
    known = beat.get("usd") is not None or any(count.usd for count in counts.values())
    return sum(count.usd for count in counts.values()) if known else None


def _cause(outcome: dict[str, Any] | None) -> str | None:
    cause = outcome.get("cause") if outcome else None
    return cause if outcome and cause != outcome["outcome"] else None


def hosts_usd(store: Store, run: str) -> tuple[float | None, float | None]:
    """Return what a run that has not begun to train has cost, and what its hosts recorded if EC2 has settled it."""
    counts = largest_counts(HostSpends(store, run).read())
    settled = settled_counts(store, run, counts)
    return (_usd(counts, {}), None) if settled is None else (_usd(settled, {}), _usd(counts, {}))


def _projected(metrics: dict[str, Any], usd: float | None) -> float | None:
    projected = metrics.get("cost/projected_usd")
    return None if projected is None or usd is None else max(projected, usd)


def _eta(metrics: dict[str, Any], steps: int) -> float | None:
    step_ms = metrics.get("perf/step_ms")
    return None if step_ms is None else steps * step_ms / 1e3


def _interruptions(outcomes: dict[int, dict[str, Any] | None], state: str) -> int:
    ended = list(outcomes.values())
    if state in ("running", "starting"):
        ended = ended[:-1]
    return len([outcome for outcome in ended if outcome is None or outcome["outcome"] == INTERRUPTED])


def _whole(value: float | None) -> int | None:
    return None if value is None or not math.isfinite(value) else int(value)
