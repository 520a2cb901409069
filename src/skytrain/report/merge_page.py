"""The report of a merge as text, and as one self-contained HTML page."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from ..merging import MergeReport, ModelRow, PathPoint, TaskScore
from .axes import Plot, PlotLayer
from .page import html_page, html_plots, html_section

CONFIDENCE_95 = 1.96  # number of standard errors on each side


def merge_table(report: MergeReport) -> list[tuple[str, ...]]:
    """Return a table with one row for each model and one column for each domain."""
    domains = list(report.tokens)
    head = ("MODEL", "", *(name.upper() for name in domains), "MEAN", "DOLLARS")
    return [head, *(_cells(row, domains) for row in report.rows)]


def merge_tasks_table(report: MergeReport) -> list[tuple[str, ...]]:
    """Return a table with one row for each scoring of a task and one column for each model; empty without tasks."""
    names = list(dict.fromkeys(name for row in report.rows for name in row.tasks))
    head = ("SCORE ± 95% INTERVAL", *(row.role if row.role == "ensemble" else row.label for row in report.rows))
    rows = [(name, *(_with_interval(row.tasks.get(name)) for row in report.rows)) for name in names]
    return [head, *rows] if rows else []


def _cells(row: ModelRow, domains: Sequence[str]) -> tuple[str, ...]:
    losses = [f"{row.losses[name]:.4f}" for name in domains]
    return (row.role, row.label, *losses, f"{row.mean_loss:.4f}", "-" if row.usd is None else f"{row.usd:.2f}")


def _with_interval(score: TaskScore | None) -> str:
    if score is None:
        return "-"
    if score.stderr is None:
        return f"{score.value:.4f}"
    return f"{score.value:.4f} ± {CONFIDENCE_95 * score.stderr:.4f}"


def merge_html(report: MergeReport) -> str:
    """Return the page, which needs nothing from the network."""
    texts = ", ".join(f"{name} ({tokens:,} tokens)" for name, tokens in report.tokens.items())
    verdicts = "\n".join(f"<li>{escape(line)}</li>" for line in report.verdicts)
    return html_page(
        f"Merge {report.run}",
        [
            f"<p>Method: {escape(report.method)}. Nats per token on held-out text: {escape(texts)}.</p>",
            html_section("Models x domains", _table(report)),
            '<p class="note">Green: the lowest loss of a column. Dollars are the cost of each model\'s run.</p>',
            html_section("Findings", f"<ul>\n{verdicts}\n</ul>"),
            _tasks(report),
            _path(report),
        ],
    )


def _path(report: MergeReport) -> str:
    if not report.path:
        return ""
    first, second = report.path_ends[:2]
    note = (
        f"Held-out loss of (1 - t) x {first} + t x {second}. "
        f"Barrier above the straight line between the ends: {report.barrier:.4f} nats."
    )
    plot = html_plots([path_plot(report.path)])
    return html_section(f"The path between {first} and {second}", f'{plot}\n<p class="note">{escape(note)}</p>')


def _tasks(report: MergeReport) -> str:
    head, *rows = merge_tasks_table(report) or [()]
    if not rows:
        return ""
    lines = ["".join(f"<th>{escape(cell)}</th>" for cell in ("task/scoring", *head[1:]))]
    lines += ["".join(f"<td>{escape(cell)}</td>" for cell in row) for row in rows]
    table = "<table>\n" + "\n".join(f"<tr>{line}</tr>" for line in lines) + "\n</table>"
    return html_section("Tasks", f'{table}\n<p class="note">Scores with 95% intervals.</p>')


def _table(report: MergeReport) -> str:
    domains = list(report.tokens)
    best = {name: min(row.losses[name] for row in report.rows) for name in domains}
    head = "".join(f"<th>{escape(name)}</th>" for name in ("", "model", *domains, "mean", "dollars"))
    lines = [f"<tr>{head}</tr>"]
    for row in report.rows:
        cells = _cells(row, domains)
        marked = [row.losses[name] == best[name] for name in domains]
        flags = [False, False, *marked, *([False] * (len(cells) - 2 - len(marked)))]
        written = "".join(
            f'<td class="best">{escape(cell)}</td>' if flag else f"<td>{escape(cell)}</td>"
            for cell, flag in zip(cells, flags, strict=True)
        )
        lines.append(f'<tr class="{escape(row.role)}">{written}</tr>')
    return "<table>\n" + "\n".join(lines) + "\n</table>"


def path_plot(path: Sequence[PathPoint]) -> str:
    """Plot the losses over t as SVG: one line for each domain, and their mean."""
    layers = []
    for colour, name in enumerate(path[0].losses):
        points = [(point.t, point.losses[name]) for point in path]
        layers += [PlotLayer(name, points, kind, colour) for kind in ("line", "dots")]
    layers.append(PlotLayer("mean", [(point.t, point.mean_loss) for point in path], "dashes", len(path[0].losses)))
    return Plot(title="held-out loss", x_label="t", y_label="nats", layers=layers).svg()
