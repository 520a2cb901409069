"""The curves of runs, from the store only: their metrics, attempts, plans and lineage."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any

from ..config import SkytrainError, plural, recorded_batches
from ..report import MAX_RUNS, AttemptSpan, RunCurves, curves_of
from ..runs import (
    RunRecord,
    RunStatus,
    attempt_numbers,
    last_records,
    load_run,
    read_attempt,
    read_failure,
    read_metrics,
    read_outcome,
)
from ..storage import Store, is_number, record_of
from ..targets import status_of


def check_count(names: Sequence[str]) -> list[str]:
    """Return the names, each once; raise if there are none, or more than a page can show."""
    chosen = list(dict.fromkeys(names))
    if not chosen:
        raise SkytrainError("give at least one run\n  `skytrain status` lists them")
    if len(chosen) > MAX_RUNS:
        raise SkytrainError(f"{len(chosen)} runs: a page shows at most {MAX_RUNS}")
    return chosen


def read_curves(store: Store, name: str) -> RunCurves:
    """Read one run."""
    record = load_run(store, name)
    return run_curves(store, record, status_of(store, record), read_metrics(store, name))


def run_curves(store: Store, record: RunRecord, status: RunStatus, metrics: Sequence[Mapping[str, Any]]) -> RunCurves:
    """Return a run of which these parts have been read."""
    with record_of(store, f"runs/{record.name}/run.json"):
        return _run_curves(store, record, status, metrics)


def _run_curves(store: Store, record: RunRecord, status: RunStatus, metrics: Sequence[Mapping[str, Any]]) -> RunCurves:
    budget = record.config.get("budget", {})
    planned = [budget.get(name) for name in ("planned_usd", "planned_step_seconds")]
    if wrong := [each for each in planned if each is not None and not is_number(each)]:
        raise TypeError(f"what was planned cannot be {wrong[0]!r:.60}")
    batches = recorded_batches(record.config["trainer"])
    batches.before(status.step)  # fails here where the record has no numbers, and not on a page of several runs
    return RunCurves(
        name=record.name,
        status=status,
        parameters=record.parameters,
        batches=batches,
        curves=curves_of(metrics),
        attempts=list(_spans(store, record.name, status)),
        planned_usd=planned[0],
        planned_step_seconds=planned[1],
        lineage=lineage(record),
    )


def lineage(record: RunRecord) -> list[tuple[str, str]]:
    """Return what the weights came from: other weights, sources, data with the hash of its manifest, the tokenizer."""
    parents = record.merged_from or [record.parent or record.started_from or "new weights"]
    rows = [("weights", ", ".join(map(str, parents))), *_sources(record)]
    rows += [("data", f"{prefix} ({digest[:12]})") for prefix, digest in record.data.items()]
    return [*rows, ("tokenizer", str(record.tokenizer_id))]


def _sources(record: RunRecord) -> list[tuple[str, str]]:
    """Return where the documents came from, if the run's own settings made its data."""
    data = record.config.get("data")
    if not isinstance(data, Mapping) or not any(
        str(each).startswith(f"tokens/{data.get('name')}/") for each in record.data
    ):
        return []
    source = data.get("source")
    if not isinstance(source, Mapping):
        return []
    given = source.get("args")
    words = [f"{name} {value}" for name, value in given.items() if value] if isinstance(given, Mapping) else []
    return [("source", ", ".join([str(source.get("target")).rpartition(".")[2], *words]))]


def _spans(store: Store, name: str, status: RunStatus) -> Iterator[AttemptSpan]:
    """Yield the attempts whose times are known. One without an end lasted until its last heartbeat."""
    beats = last_records(store, name, "spend")
    numbers = attempt_numbers(store, name)
    for number in numbers:
        begun = read_attempt(store, name, number)
        outcome = read_outcome(store, name, number) or {}
        failure = read_failure(store, name, number)
        start = _time(begun.get("started_at"))
        if start is None:
            continue
        alive = number == numbers[-1] and status.state in ("running", "starting")
        beat = _time(beats.get(number, {}).get("at"))
        end = _time(outcome.get("ended_at")) or _time(failure.failed_at if failure else None)
        state = "failed" if failure else outcome.get("outcome") or ("running" if alive else "interrupted")
        reason = failure.reason.partition("\n")[0] if failure else outcome.get("cause") or outcome.get("outcome")
        yield AttemptSpan(
            number=number,
            start=start,
            end=max(start, time.time() if alive else end or beat or start),
            host=str(begun.get("host", "?")),
            ranks=_ranks(begun),
            ended_by=str(reason or ("running" if alive else "no word of its end")),
            state=str(state),
        )


def _ranks(begun: Mapping[str, Any]) -> str:
    ranks = begun.get("world_size")
    per_node = begun.get("ranks_per_node")
    if not isinstance(ranks, int):
        return "ranks unknown"
    nodes = f" on {plural(-(-ranks // per_node), 'node')}" if isinstance(per_node, int) and per_node > 0 else ""
    return plural(ranks, "rank") + nodes


def _time(text: Any) -> float | None:
    """Return seconds since 1970; None for what is not a time: whoever can write to the store decides it."""
    try:
        return datetime.fromisoformat(text).timestamp()
    except (TypeError, ValueError, OverflowError):
        return None
