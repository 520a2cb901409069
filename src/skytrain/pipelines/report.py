"""Report: runs or a sweep as one HTML page, from the store only."""

from __future__ import annotations

import ast
import contextlib
import dataclasses
from collections.abc import Sequence
from datetime import datetime

from ..config import Config, SkytrainError, format_seconds
from ..merging import read_provenance
from ..report import RunCurves, RunPage, compare_html, framed_page, run_html
from ..runs import (
    LogSelection,
    RunLogs,
    attempt_key,
    attempt_numbers,
    list_runs,
    load_run,
    read_attempt,
    read_failure,
    read_metrics,
    read_outcome,
)
from ..storage import NotFound, Store, open_store, read_object, read_whole, record_of
from ..targets import status_of
from ..tuning import SweepStore
from .costs import cost_notes, cost_rows, costs
from .curves import check_count, read_curves, run_curves

SAMPLE = "sample: "  # how a log line of generated text begins
SAMPLES = 5
LOG_LINES = 20_000


@dataclasses.dataclass(frozen=True)
class WrittenPage:
    """A page, and where it was written."""

    html: str
    url: str


def compare(config: Config, names: Sequence[str]) -> str:
    """Return one page of several runs. It belongs to none of them, so it is not kept in the store."""
    store = open_store(config.store)
    return compare_html([read_curves(store, name) for name in check_count(names)])


def report(config: Config, name: str | None = None) -> WrittenPage:
    """Write the page of a run into its folder, or find that of a sweep, which the sweep has written.

    Without a name it is the newest run.
    """
    store = open_store(config.store)
    if name is None:
        readable = list_runs(store)
        if not readable:
            raise SkytrainError(
                f"no run in {store.root} has a record that can be read\n  `skytrain runs list` says why"
            )
        name = readable[0].name
    if SweepStore(store, name).exists():
        return _sweep_page(store, name)
    with record_of(store, f"runs/{name}/run.json"):
        html = run_html(run_page(config, store, name))
    key = f"runs/{name}/report.html"
    store.write(key, html.encode())
    return WrittenPage(html, store.url(key))


def _sweep_page(store: Store, name: str) -> WrittenPage:
    key = f"sweeps/{name}/report/report.html"
    try:
        return WrittenPage(framed_page(name, read_whole(store, key).decode(errors="replace")), store.url(key))
    except NotFound:
        raise SkytrainError(
            f"the sweep {name} has no answer yet, and its page is written with the answer\n"
            f"  the same `skytrain tune` continues it; skytrain status {name} shows how far it is"
        ) from None


def run_page(config: Config, store: Store, name: str) -> RunPage:
    """Return what the page of a run shows."""
    record = load_run(store, name)
    merged = read_provenance(store, name)
    spent = costs(config, name, None)
    status = status_of(store, record)
    metrics = read_metrics(store, name)
    curves = run_curves(store, record, status, metrics)
    return RunPage(
        record=record,
        status=status,
        metrics=metrics,
        curves=curves,
        attempts=_attempts(store, name, curves),
        costs=_lower_head(cost_rows(spent)) if spent.machines else (),
        cost_notes=cost_notes(spent),
        stages=_lower_head(list(spent.stages)) if spent.stages else (),
        scores=_scores(store, name),
        samples=_samples(store, name),
        merge=dataclasses.asdict(merged) if merged else {},
    )


def _scores(store: Store, name: str) -> list[tuple[str, ...]]:
    """Return what `skytrain finish` measured, header first; none where it measured nothing."""
    rows: list[tuple[str, ...]] = []
    for stat in store.list(f"runs/{name}/finish/"):
        if "/scores/" not in stat.key:
            continue
        with record_of(store, stat.key):
            found = read_object(store, stat.key)
            for task, result in found["tasks"].items():
                for scoring, measure in result["metrics"].items():
                    value, error = (measure[part] for part in ("value", "stderr"))
                    shown = f"{value:.4g}{f' ± {error:.2g}' if error is not None else ''}" if value is not None else "?"
                    rows.append((task, scoring, shown, f"{result['items']:,}", f"{found['step']:,}"))
    return [("task", "scoring", "value", "items", "step"), *rows] if rows else []


def _attempts(store: Store, name: str, curves: RunCurves) -> list[tuple[str, ...]]:
    spans = {span.number: span for span in curves.attempts}
    rows: list[tuple[str, ...]] = [("attempt", "started", "lasted", "host", "ranks", "mesh", "steps", "ended by")]
    for number in attempt_numbers(store, name):
        begun = read_attempt(store, name, number)
        outcome = read_outcome(store, name, number) or {}
        failure = read_failure(store, name, number)
        ended = outcome.get("ended_at") or (failure.failed_at if failure else None)
        span = spans.get(number)
        reached = curves.status.step if span and span.state == "running" else "?"
        rows.append(
            (
                str(number),
                str(begun.get("started_at", "?")),
                format_seconds(round(_seconds(begun["started_at"], ended))) if ended and "started_at" in begun else "",
                str(begun.get("host", "?")),
                str(begun.get("world_size", "?")),
                str(begun.get("mesh", "?")),
                f"{_resumed_at(store, name, number)} to {outcome.get('step', reached)}",
                span.ended_by if span else "?",
            )
        )
    return rows


def _lower_head(rows: list[tuple[str, ...]]) -> list[tuple[str, ...]]:
    """Return a terminal table with its header in lower case, as on pages."""
    return [tuple(cell.lower() for cell in rows[0]), *rows[1:]]


def _resumed_at(store: Store, name: str, attempt: int) -> str:
    try:
        return str(read_object(store, f"{attempt_key(name, attempt)}/resumed.json").get("step", "?"))
    except NotFound:
        return "?"


def _samples(store: Store, name: str) -> list[tuple[str, str]]:
    """Return the newest texts that were generated during training."""
    with contextlib.suppress(SkytrainError):  # no attempt, or no log
        lines = RunLogs(store, name, LogSelection(None, frozenset({0}), None)).last(LOG_LINES)
        texts = [(line.at, line.text.removeprefix(SAMPLE)) for line in lines if line.text.startswith(SAMPLE)]
        return [(at, _unquoted(text)) for at, text in texts[-SAMPLES:]]
    return []


def _unquoted(text: str) -> str:
    """Return what a log quotes; the line as it is, if it is not a quoted text."""
    try:
        return str(ast.literal_eval(text)) if text[:1] in ("'", '"') else text
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return text


def _seconds(start: str, end: str) -> float:
    return (datetime.fromisoformat(end) - datetime.fromisoformat(start)).total_seconds()
