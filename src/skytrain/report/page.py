"""The frame of all HTML pages: one file with its style and plots inside, which needs nothing from the network."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Iterable, Sequence
from html import escape
from pathlib import Path
from typing import Any

STYLE = """
:root { color-scheme: light dark; --ink: #1f2937; --faint: #6b7280; --line: #e5e7eb; --paper: #fff; --soft: #f9fafb; }
:root { --merged: #eff6ff; --good: #047857; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e5e7eb; --faint: #9ca3af; --line: #374151; --paper: #111827; --soft: #1f2937; }
  :root { --merged: #1e3a5f; --good: #34d399; }
}
body { font: 15px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--paper); }
body { max-width: 1040px; margin: 2rem auto; padding: 0 1rem; } body.wide { max-width: 1600px; }
h1 { font-size: 1.5rem; margin-bottom: .2rem; overflow-wrap: anywhere; } h2 { font-size: 1.1rem; margin-top: 2rem; }
table { border-collapse: collapse; display: block; overflow-x: auto; }
th, td { padding: .3rem .8rem; text-align: right; border-bottom: 1px solid var(--line); white-space: nowrap; }
th:first-child, td:first-child { text-align: left; padding-left: 0; } th { color: var(--faint); font-weight: 500; }
td:first-child { max-width: min(50vw, 28rem); overflow: hidden; text-overflow: ellipsis; }
.name { display: inline-flex; overflow: hidden; min-width: 0; max-width: 100%; vertical-align: bottom; white-space: pre; }
.name span { flex: none; } .name span:first-child:not(:last-child) { flex: 0 1 auto; overflow: hidden; text-overflow: ellipsis; }
table.words th, table.words td { text-align: left; vertical-align: top; white-space: normal; overflow-wrap: anywhere; }
table.words td { min-width: 6rem; } table.words td:first-child { min-width: 9rem; }
@media (max-width: 640px) { table.across td { white-space: nowrap; } } /* it scrolls; rows stay one line high */
tr.merged td { background: var(--merged); font-weight: 600; } td.best { color: var(--good); font-weight: 600; }
.tiles { display: flex; flex-wrap: wrap; gap: .8rem; margin: 1.2rem 0; }
.tiles div { border: 1px solid var(--line); border-radius: 8px; padding: .5rem 1rem; }
.tiles b { display: block; font-size: 1.25rem; } .note, .tiles span { color: var(--faint); }
.plots { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 560px), 1fr)); gap: .5rem; }
.plots svg { width: 100%; }
@media (max-width: 640px) { .plots { overflow-x: auto; } .plots svg { width: 480px; } }
@media (prefers-color-scheme: dark) { .plots svg { filter: invert(.9) hue-rotate(180deg); } }
pre { background: var(--soft); padding: .8rem; white-space: pre-wrap; overflow-wrap: anywhere; }
"""
CURVES_STYLE = """
#runs label { display: flex; align-items: center; } #runs label > :not(.name) { flex: none; }
#runs th { white-space: normal; vertical-align: bottom; } #runs td + td, #runs th + th { padding: .3rem .6rem; }
#controls { display: flex; flex-wrap: wrap; gap: .4rem 1.2rem; align-items: center; margin: 1.2rem 0 .4rem; }
#controls { position: sticky; top: 0; background: var(--paper); padding: .4rem 0; z-index: 2; }
#panels { display: grid; grid-template-columns: repeat(auto-fill, minmax(min(100%, 430px), 1fr)); gap: 1rem; }
figure { margin: 0; min-width: 0; } figcaption { font-weight: 600; overflow-wrap: anywhere; }
figcaption .note { font-weight: 400; }
.stage { position: relative; } canvas { width: 100%; height: 260px; display: block; touch-action: pan-y; cursor: crosshair; }
.cross { position: absolute; top: 10px; bottom: 26px; width: 1px; background: var(--faint); pointer-events: none; }
.choice { position: absolute; top: 10px; bottom: 26px; background: #3a9bdc44; pointer-events: none; }
.tip { position: absolute; top: 12px; background: var(--paper); border: 1px solid var(--line); border-radius: 6px; }
.tip { padding: .3rem .6rem; font-size: 12px; pointer-events: none; z-index: 3; max-width: 75%; opacity: .96; }
.tip div { display: flex; align-items: center; gap: 4px; white-space: nowrap; overflow: hidden; }
.tip .at { color: var(--faint); } .tip div > :not(.name) { flex: none; }
.tip i, .dot { display: inline-block; width: 9px; height: 9px; margin-right: 6px; border-radius: 2px; }
.swatch { display: inline-block; width: 18px; border-top: 3px solid; margin: 0 6px; } .dashed { border-top-style: dashed; }
.row { display: flex; gap: .6rem; align-items: center; margin: 2px 0; }
.who { flex: 0 0 clamp(104px, 16vw, 220px); min-width: 0; }
.bar { position: relative; flex: 1; height: 16px; background: var(--soft); }
.bar i { position: absolute; top: 0; bottom: 0; border-radius: 2px; border-right: 1px solid var(--paper); }
.labels { flex: 1; display: flex; justify-content: space-between; } .ends { color: var(--faint); font-size: 12px; }
"""
FRAME = "width: 100%; height: 92vh; border: 0"
SCRIPTS = Path(__file__).parent / "scripts"


def html_page(title: str, body: Iterable[str], *, script: str = "", style: str = "", attributes: str = "") -> str:
    """Return a complete page; `body` is HTML, and empty parts are left out.

    `script` is the only code that a browser runs: texts of a store that look like code are refused by the policy.
    """
    parts = "\n".join(part for part in body if part)
    code = f"<script>{script}</script>\n" if script else ""
    page = (
        '<!DOCTYPE html>\n<html lang="en">\n'
        f'<head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{content_policy(script)}">\n'
        f"<title>{escape(title)}</title><style>{STYLE}{style}</style></head>\n"
        f"<body{attributes}>\n<h1>{escape(title)}</h1>\n{parts}\n{code}</body>\n</html>\n"
    )
    return encodable(page)


def encodable(text: str) -> str:
    """Return the text without halves of characters, which JSON can spell and no file can hold."""
    return text.encode("utf-8", "replace").decode()


def framed_page(title: str, html: str) -> str:
    """Return a page that shows another one, which somebody else may have written: it runs no code and loads nothing."""
    frame = f'<iframe sandbox title="{escape(title)}" srcdoc="{escape(html)}" style="{FRAME}"></iframe>'
    return html_page(title, [frame], attributes=' class="wide"')


def content_policy(script: str) -> str:
    """Return the policy of a page: nothing from elsewhere, and no code but this script."""
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    code = f"script-src 'sha256-{digest}'; connect-src 'self'; " if script else ""
    return f"default-src 'none'; {code}style-src 'unsafe-inline'; img-src data:; base-uri 'none'; form-action 'none'"


def page_script(name: str) -> str:
    """Return a script of this package, with what it uses."""
    return "".join((SCRIPTS / each).read_text(encoding="utf-8") for each in ("elements.js", name))


def html_data(data: Any) -> str:
    """Return data for a script. No text in it can end the element or begin another."""
    text = json.dumps(data, allow_nan=False, separators=(",", ":"))
    for character in "<>&":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return f'<script type="application/json" id="data">{text}</script>'


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
