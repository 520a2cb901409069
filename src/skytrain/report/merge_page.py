"""The report of a merge as text, and as one self-contained HTML page."""

from __future__ import annotations

import html
from collections.abc import Sequence

from ..merging import MergeReport, ModelRow, PathPoint, TaskScore

CONFIDENCE_95 = 1.96  # standard errors on each side
WIDTH, HEIGHT, LEFT, TOP, RIGHT, BOTTOM = 640, 280, 64, 16, 150, 44
COLORS = ("#2563eb", "#d97706", "#059669", "#dc2626", "#7c3aed", "#0891b2")
STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; color: #1f2937; max-width: 960px; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.5rem; } h2 { font-size: 1.1rem; margin-top: 2rem; }
table { border-collapse: collapse; } th, td { padding: .3rem .8rem; text-align: right; border-bottom: 1px solid #e5e7eb; }
th:first-child, td:first-child, th:nth-child(2), td:nth-child(2) { text-align: left; }
tr.merged td { background: #eff6ff; font-weight: 600; } td.best { color: #047857; font-weight: 600; }
svg text { font: 12px system-ui, sans-serif; fill: #374151; } .note { color: #6b7280; }
"""


def merge_table(report: MergeReport) -> list[tuple[str, ...]]:
    """One row for each model, one column for each domain and task."""
    domains, tasks = list(report.tokens), _tasks(report)
    head = ("MODEL", "", *(name.upper() for name in domains), "MEAN", *tasks, "DOLLARS")
    return [head, *(_cells(row, domains, tasks) for row in report.rows)]


def _tasks(report: MergeReport) -> list[str]:
    return list(dict.fromkeys(name for row in report.rows for name in row.tasks))


def _cells(row: ModelRow, domains: Sequence[str], tasks: Sequence[str]) -> tuple[str, ...]:
    losses = [f"{row.losses[name]:.4f}" for name in domains]
    scores = [_with_interval(row.tasks.get(name)) for name in tasks]
    return (row.role, row.label, *losses, f"{row.mean_loss:.4f}", *scores, "-" if row.usd is None else f"{row.usd:.2f}")


def _with_interval(score: TaskScore | None) -> str:
    if score is None:
        return "-"
    if score.stderr is None:
        return f"{score.value:.4f}"
    return f"{score.value:.4f} ± {CONFIDENCE_95 * score.stderr:.4f}"


def merge_html(report: MergeReport) -> str:
    """The whole page; it needs nothing from the network."""
    title = html.escape(f"Merge {report.run}")
    texts = ", ".join(f"{name} ({tokens:,} tokens)" for name, tokens in report.tokens.items())
    path = ""
    if report.path:
        ends = [html.escape(each) for each in report.path_ends]
        path = (
            f"<h2>The path between {ends[0]} and {ends[1]}</h2>\n{path_plot(report.path)}\n"
            f'<p class="note">Held-out loss of (1 - t) x {ends[0]} + t x {ends[1]}. '
            f"Barrier over the chord: {report.barrier:.4f} nats.</p>"
        )
    verdicts = "\n".join(f"<li>{html.escape(line)}</li>" for line in report.verdicts)
    return f"""<!DOCTYPE html>
<html lang="en">
<head><meta charset="utf-8"><title>{title}</title><style>{STYLE}</style></head>
<body>
<h1>{title}</h1>
<p>Method: {html.escape(report.method)}. Nats per token on held-out text: {html.escape(texts)}.</p>
<h2>Models x domains</h2>
{_table(report)}
<p class="note">Green: the lowest loss of a column. Scores have 95% intervals. Dollars are those of each model's own run.</p>
<h2>Findings</h2>
<ul>
{verdicts}
</ul>
{path}
</body>
</html>
"""


def _table(report: MergeReport) -> str:
    domains, tasks = list(report.tokens), _tasks(report)
    best = {name: min(row.losses[name] for row in report.rows) for name in domains}
    head = "".join(f"<th>{html.escape(name)}</th>" for name in ("", "model", *domains, "mean", *tasks, "dollars"))
    lines = [f"<tr>{head}</tr>"]
    for row in report.rows:
        cells = _cells(row, domains, tasks)
        marked = [row.losses[name] == best[name] for name in domains]
        flags = [False, False, *marked, *([False] * (len(cells) - 2 - len(marked)))]
        written = "".join(
            f'<td class="best">{html.escape(cell)}</td>' if flag else f"<td>{html.escape(cell)}</td>"
            for cell, flag in zip(cells, flags, strict=True)
        )
        lines.append(f'<tr class="{html.escape(row.role)}">{written}</tr>')
    return "<table>\n" + "\n".join(lines) + "\n</table>"


def path_plot(path: Sequence[PathPoint]) -> str:
    """Losses over t as an SVG: one line for each domain, and their mean."""
    series = {name: [point.losses[name] for point in path] for name in path[0].losses}
    series["mean"] = [point.mean_loss for point in path]
    low, high = (choose(value for values in series.values() for value in values) for choose in (min, max))
    span = (high - low) or 1.0

    def x(t: float) -> float:
        return LEFT + t * (WIDTH - LEFT - RIGHT)

    def y(value: float) -> float:
        return TOP + (high - value) / span * (HEIGHT - TOP - BOTTOM)

    parts = [f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}" role="img">']
    for part in range(5):
        value = low + span * part / 4
        parts.append(f'<line x1="{LEFT}" x2="{x(1):.1f}" y1="{y(value):.1f}" y2="{y(value):.1f}" stroke="#e5e7eb"/>')
        parts.append(f'<text x="{LEFT - 8}" y="{y(value) + 4:.1f}" text-anchor="end">{value:.3f}</text>')
    for t in (0.0, 0.5, 1.0):
        parts.append(f'<text x="{x(t):.1f}" y="{HEIGHT - BOTTOM + 18}" text-anchor="middle">{t:g}</text>')
    parts.append(f'<text x="{x(0.5):.1f}" y="{HEIGHT - 6}" text-anchor="middle">t</text>')
    for number, (name, values) in enumerate(series.items()):
        color = "#111827" if name == "mean" else COLORS[number % len(COLORS)]
        dash = ' stroke-dasharray="5 4"' if name == "mean" else ""
        points = " ".join(f"{x(point.t):.1f},{y(value):.1f}" for point, value in zip(path, values, strict=True))
        parts.append(f'<polyline points="{points}" fill="none" stroke="{color}" stroke-width="2"{dash}/>')
        parts += [
            f'<circle cx="{p.partition(",")[0]}" cy="{p.partition(",")[2]}" r="3" fill="{color}"/>'
            for p in points.split()
        ]
        row = TOP + 14 + 18 * number
        parts.append(
            f'<line x1="{x(1) + 16:.1f}" x2="{x(1) + 36:.1f}" y1="{row - 4}" y2="{row - 4}" stroke="{color}" stroke-width="2"{dash}/>'
        )
        parts.append(f'<text x="{x(1) + 42:.1f}" y="{row}">{html.escape(name)}</text>')
    return "\n".join([*parts, "</svg>"])
