"""Several runs on one self-contained page: their curves on one axis, their attempts, what they were made of."""

from __future__ import annotations

from collections.abc import Sequence

from .curves import RunCurves, page_data
from .page import CURVES_STYLE, html_data, html_page, html_section, html_table, page_script


def compare_html(runs: Sequence[RunCurves], attributes: str = "") -> str:
    """Return the page of these runs; `attributes` of its body say where newer curves are."""
    names = ", ".join(run.name for run in runs)
    kinds = list(dict.fromkeys(kind for run in runs for kind, _ in run.lineage))
    lineage = [("run", *kinds)]
    for run in runs:
        texts = [", ".join(text for each, text in run.lineage if each == kind) for kind in kinds]
        lineage.append((run.name, *texts))
    return html_page(
        names if len(names) <= 80 else f"{len(runs)} runs",
        [
            curves_html(),
            html_section("Lineage", html_table(lineage, "words across")),
            html_data(page_data(runs)),
        ],
        script=page_script("curves.js"),
        style=CURVES_STYLE,
        attributes=f' class="wide"{attributes}',
    )


def curves_html() -> str:
    """Return the elements that the script fills."""
    return (
        '<p class="note" id="live"></p>\n<noscript><p><b>The plots need JavaScript.</b></p></noscript>\n'
        '<table id="runs"></table>\n<div id="controls"></div>\n<div id="panels"></div>\n<div id="timeline"></div>'
    )
