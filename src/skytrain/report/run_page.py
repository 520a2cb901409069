"""A run as one self-contained HTML page: its numbers, curves, samples, attempts, dollars and settings."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from typing import Any

import yaml  # type: ignore[import-untyped]

from ..config import format_count, format_seconds, recorded_batches
from ..runs import RunRecord, RunStatus
from .compare_page import curves_html
from .curves import CHANCE, HIDDEN, STDERR, TASKS, RunCurves, is_score, page_data
from .page import CURVES_STYLE, html_data, html_page, html_section, html_table, page_script

TRAINING_METRICS = ("train/", "val/", "perf/", "cost/", "moe/")  # all others belong to tasks and evaluators
XY = tuple[float, float]
Rows = Sequence[Sequence[str]]


@dataclass(frozen=True)
class RunPage:
    """The contents of the page. Tables have their header first."""

    record: RunRecord
    status: RunStatus
    metrics: Sequence[Mapping[str, Any]]
    curves: RunCurves
    attempts: Rows = ()
    costs: Rows = ()
    cost_notes: Sequence[str] = ()
    stages: Rows = ()  # of the pipeline that the run belongs to
    scores: Rows = ()  # on downstream tasks, after training
    samples: Sequence[tuple[str, str]] = ()  # when, text
    merge: Mapping[str, Any] = field(default_factory=dict)  # what a merged model was made of


def run_html(run: RunPage, attributes: str = "") -> str:
    """Return the page of a run; `attributes` of its body say where newer curves are."""
    samples = "\n".join(f'<p class="note">{escape(at)}</p><pre>{escape(text)}</pre>' for at, text in run.samples)
    notes = "".join(f'<p class="note">{escape(line)}</p>' for line in run.cost_notes)
    merge = f"<pre>{escape(_yaml(run.merge))}</pre>" if run.merge else ""
    settings = f"<details><summary>all settings</summary><pre>{escape(_yaml(run.record.config))}</pre></details>"
    return html_page(
        run.record.name,
        [
            f'<p class="note">{escape(_summary(run))}</p>',
            _tiles(run),
            curves_html(),
            html_section("Each attempt", html_table(run.attempts)),
            html_section("Experts, by layer", html_table(_router_rows(run))),
            html_section("Downstream tasks", html_table(_last_scores(run))),
            html_section("Downstream tasks, after training", html_table(run.scores)),
            html_section("Samples", samples),
            html_section("Costs", html_table(run.costs) + notes if run.costs else ""),
            html_section("Stages of the pipeline", html_table(run.stages)),
            html_section("Merged from", merge),
            html_section("Lineage", html_table([("", ""), *run.curves.lineage], "words")),
            html_section("What was run", html_table(_facts(run), "words") + settings),
            html_data(page_data([run.curves])),
        ],
        script=page_script("curves.js"),
        style=CURVES_STYLE,
        attributes=f' class="wide"{attributes}',
    )


def _summary(run: RunPage) -> str:
    status = run.status
    reason = status.reason or (None if status.cause == status.state else status.cause)
    steps = f"step {status.step:,} of {status.total_steps:,}" if status.total_steps else ""
    parts = [status.state, steps, reason or ""]
    return ", ".join(part for part in parts if part)


def _tiles(run: RunPage) -> str:
    """Return the numbers that a reader looks for first."""
    status = run.status
    val_loss = status.val_loss
    record = run.record
    trainer = record.config.get("trainer", {})
    tokens = recorded_batches(trainer).before(status.step or 0) if trainer.get("batch_tokens") else None
    lowest = min((value for _, value in _points(run, "val/loss")), default=None)
    tiles = [
        ("parameters", format_count(record.parameters)),
        ("tokens", format_count(tokens) if tokens else None),
        ("training loss", _text(status.loss, ".4f")),
        ("validation loss", _text(val_loss, ".4f")),
        ("lowest validation loss", _text(lowest, ".4f") if lowest != val_loss else None),
        ("perplexity", _text(math.exp(val_loss), ".4g") if val_loss is not None and val_loss < 50 else None),
        ("tokens/s", format_count(status.tokens_per_s) if status.tokens_per_s else None),
        ("MFU", _text(status.mfu, ".1%")),
        ("machine time", format_seconds(round(status.machine_seconds)) if status.machine_seconds else None),
        ("spent", f"${status.usd:.2f}" if status.usd is not None else None),
        ("budget", f"${status.budget_usd:g}" if status.budget_usd is not None else None),
    ]
    shown = "\n".join(f"<div><span>{name}</span><b>{text}</b></div>" for name, text in tiles if text)
    return f'<div class="tiles">\n{shown}\n</div>'


def _router_rows(run: RunPage) -> list[tuple[str, ...]]:
    """Return the newest loads of each layer's experts; the header alone for a model without them."""
    rows: list[tuple[str, ...]] = [("layer", "busiest expert / mean", "entropy / largest", "dropped", "step")]
    names = dict.fromkeys(name for record in run.metrics for name in record if name.startswith("moe/load_max/"))
    for layer in sorted(int(name.rpartition("/")[2]) for name in names):
        points = [_points(run, f"moe/{metric}/{layer}") for metric in ("load_max", "entropy", "dropped")]
        values = [f"{each[-1][1]:.3g}" if each else "" for each in points]
        rows.append((str(layer), *values, f"{points[0][-1][0]:,.0f}" if points[0] else ""))
    return rows


def _last_scores(run: RunPage) -> list[tuple[str, ...]]:
    """Return the newest value of each task's metrics, and the step at which it was measured."""
    rows: list[tuple[str, ...]] = [("task", "metric", "value", "chance", "items", "step")]
    for name in _task_metrics(run):
        step, value = _points(run, name)[-1]
        task, _, metric = name.removeprefix(TASKS).rpartition("/")
        folder = name.rpartition("/")[0]
        error, chance, items = (_points(run, other) for other in (name + STDERR, folder + CHANCE, f"{folder}/items"))
        rows.append(
            (
                task.replace("/", ", "),
                metric,
                f"{value:.4g}" + (f" ± {error[-1][1]:.2g}" if error else ""),
                f"{chance[-1][1]:.4g}" if chance and is_score(name) else "",
                f"{items[-1][1]:,.0f}" if items else "",
                f"{step:,.0f}",
            )
        )
    return rows


def _task_metrics(run: RunPage) -> list[str]:
    names = dict.fromkeys(name for record in run.metrics for name in record if name != "step")
    shown = (name for name in names if not name.startswith(TRAINING_METRICS) and not name.endswith(HIDDEN))
    return [name for name in shown if _points(run, name)]


def _facts(run: RunPage) -> list[tuple[str, str]]:
    record = run.record
    facts = {
        "started": record.started_at,
        "from": record.parent or record.started_from,
        "data": ", ".join(record.data),
        "tokenizer": record.tokenizer_id,
        "seed": str(record.seed),
        "Skytrain": record.skytrain_version,
        "code": record.code_revision,
        "hardware": ", ".join(f"{name} {value}" for name, value in record.hardware.items()),
        "former names": ", ".join(record.former_names),
    }
    return [("", ""), *((name, value) for name, value in facts.items() if value)]


def _points(run: RunPage, metric: str) -> list[XY]:
    points = [(float(one["step"]), float(one[metric])) for one in run.metrics if one.get(metric) is not None]
    return [point for point in points if math.isfinite(point[1])]


def _text(value: float | None, form: str) -> str | None:
    return None if value is None else format(value, form)


def _yaml(values: Mapping[str, Any]) -> str:
    return str(yaml.safe_dump(dict(values), sort_keys=False, allow_unicode=True))
