"""The frame of all HTML pages: one file with its style and plots inside, which needs nothing from the network."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; color: #1f2937; max-width: 1040px; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.5rem; margin-bottom: .2rem; overflow-wrap: anywhere; } h2 { font-size: 1.1rem; margin-top: 2rem; }
table { border-collapse: collapse; display: block; overflow-x: auto; }
th, td { padding: .3rem .8rem; text-align: right; border-bottom: 1px solid #e5e7eb; white-space: nowrap; }
th:first-child, td:first-child { text-align: left; padding-left: 0; } th { color: #6b7280; font-weight: 500; }
table.words th, table.words td { text-align: left; white-space: normal; overflow-wrap: anywhere; }
table.words td:first-child { white-space: nowrap; }
tr.merged td { background: #eff6ff; font-weight: 600; } td.best { color: #047857; font-weight: 600; }
.tiles { display: flex; flex-wrap: wrap; gap: .8rem; margin: 1.2rem 0; }
.tiles div { border: 1px solid #e5e7eb; border-radius: 8px; padding: .5rem 1rem; }
.tiles b { display: block; font-size: 1.25rem; } .note, .tiles span { color: #6b7280; }
.plots { display: grid; grid-template-columns: repeat(auto-fit, minmax(460px, 1fr)); gap: .5rem; }
.plots svg { width: 100%; } pre { background: #f9fafb; padding: .8rem; white-space: pre-wrap; overflow-wrap: anywhere; }
"""


def html_page(title: str, body: Iterable[str]) -> str:
    """Return a complete page; `body` is HTML, and empty parts are left out."""
    parts = "\n".join(part for part in body if part)
    return (
        '<!DOCTYPE html>\n<html lang="en">\n'
        f'<head><meta charset="utf-8"><title>{escape(title)}</title><style>{STYLE}</style></head>\n'
        f"<body>\n<h1>{escape(title)}</h1>\n{parts}\n</body>\n</html>\n"
    )


def html_table(rows: Sequence[Sequence[str]], kind: str = "") -> str:
    """Return rows of text as a table, header first, which may be empty; `kind` is a class of the style."""
    if len(rows) < 2:
        return ""
    head, *others = ([escape(cell) for cell in row] for row in rows)
    lines = ["<tr><th>" + "</th><th>".join(head) + "</th></tr>"] if any(head) else []
    lines += ["<tr><td>" + "</td><td>".join(row) + "</td></tr>" for row in others]
    return f'<table class="{kind}">\n' + "\n".join(lines) + "\n</table>"


def html_section(heading: str, content: str) -> str:
    """Return the content under a heading, or nothing if there is no content."""
    return f"<h2>{escape(heading)}</h2>\n{content}" if content else ""


def html_plots(svgs: Iterable[str]) -> str:
    """Return the plots side by side, as many as fit."""
    drawn = "\n".join(svg for svg in svgs if svg)
    return f'<div class="plots">\n{drawn}\n</div>' if drawn else ""
