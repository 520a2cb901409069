"""The overview page of a store: all runs, sweeps and machines with their states and dollars."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from ..config import format_count, format_seconds
from ..runs import RunStatus
from ..targets import AccountState
from ..tuning import SweepStatus
from .curves import MAX_RUNS
from .page import html_data, html_page, page_script
from .tables import machine_notes, machine_rows

COLUMNS = (
    "state",
    "step",
    "loss",
    "val. loss",
    "tokens/s",
    "MFU",
    "dollars",
    "projected",
    "budget",
    "to go",
    "attempts",
    "host",
)
SWEEP_COLUMNS = ("sweep", "state", "trials", "running", "dollars", "final run at most", "answer", "interval")
DASHBOARD_STYLE = """
#bar { display: flex; flex-wrap: wrap; gap: .8rem; align-items: center; margin: 1rem 0; position: sticky; top: 0; }
#bar { background: var(--paper); padding: .4rem 0; z-index: 2; } #filter { flex: 0 1 320px; padding: .3rem .5rem; }
.first { display: flex; align-items: center; } .first input { flex: none; } .first a { min-width: 0; }
#runs td + td, #runs th + th { padding: .3rem .6rem; } #runs th { cursor: pointer; } a { color: inherit; } td input { margin-right: .5rem; }
.state::before { content: "●"; margin-right: .4rem; color: #8c6d31; } .running::before, .starting::before { color: #3a9bdc; }
.done::before { color: #009e73; } .failed::before, .damaged::before, .launch-failed::before { color: #c0392b; }
.interrupted::before, .stale::before { color: #d55e00; }
"""


def dashboard_html(data: Mapping[str, Any]) -> str:
    """Return the page, with the data of the moment in it."""
    body = (
        "<noscript><p><b>The dashboard needs JavaScript.</b> <code>skytrain status</code> shows the same in a terminal.</p></noscript>\n"
        '<p class="note"><span id="note"></span> <span id="live"></span></p>\n<div class="tiles" id="tiles"></div>\n'
        '<div id="bar"><input id="filter" type="search" placeholder="filter by name or state" aria-label="filter">'
        '<button id="compare">compare</button></div>\n<table id="runs"></table>\n<div id="sweeps"></div>\n<div id="machines"></div>'
    )
    return html_page(
        "Skytrain",
        [body, html_data(data)],
        script=page_script("dashboard.js"),
        style=DASHBOARD_STYLE,
        attributes=' class="wide"',
    )


def dashboard_data(
    root: str,
    runs: Sequence[RunStatus],
    sweeps: Sequence[SweepStatus],
    account: AccountState | None,
    loading: tuple[int, int] | None,
    problem: str,
) -> dict[str, Any]:
    """Return what the page shows. `loading` is how many runs have been read so far, of how many."""
    known = [each.usd for each in runs if each.usd is not None]
    going = [each for each in runs if each.state in ("running", "starting")]
    open_usd = [each.projected_usd for each in going if each.projected_usd is not None]
    tuned = sum(each.spent_usd for each in sweeps)
    tiles = [("runs", f"{len(runs):,}"), ("running", str(len(going)))]
    tiles += [("spent by runs", f"${sum(known):,.2f}")] if known else []
    tiles += [("projected of those running", f"${sum(open_usd):,.2f}")] if open_usd else []
    tiles += [("sweeps", str(len(sweeps))), ("spent by sweeps, with their trials", f"${tuned:,.2f}")] if sweeps else []
    if account is not None:
        tiles.append(("machines", f"{len(account.machines)}, ${account.usd_per_hour:,.2f} per hour"))
    reading = f", reading: {loading[0]:,} of {loading[1]:,} runs" if loading else ""
    return {
        "note": f"{root}{reading}{f': {problem}' if problem else ''}",
        "loading": loading is not None,
        "most": MAX_RUNS,
        "tiles": tiles,
        "columns": COLUMNS,
        "runs": [_run(each) for each in runs],
        "sweep_columns": SWEEP_COLUMNS,
        "sweeps": [_sweep(each) for each in sweeps],
        "machines": [] if account is None else machine_rows(account),
        "machine_notes": [] if account is None else machine_notes(account, runs),
    }


def _run(status: RunStatus) -> dict[str, Any]:
    values = (
        status.step,
        status.loss,
        status.val_loss,
        status.tokens_per_s,
        status.mfu,
        status.usd,
        status.projected_usd,
        status.budget_usd,
        status.eta_seconds,
        status.attempts,
    )
    numbers = [value if value is None or math.isfinite(value) else None for value in values]
    cells = [
        status.state,
        f"{status.step:,}/{status.total_steps:,}",
        *(_shown(value, "{:.4f}") for value in values[1:3]),  # nan, where a run diverged
        "-" if numbers[3] is None else format_count(numbers[3]),
        _shown(numbers[4], "{:.1%}"),
        *(_shown(value, "${:,.2f}") for value in numbers[5:8]),
        "-" if numbers[8] is None else format_seconds(max(0, round(numbers[8]))),
        str(status.attempts),
        status.host or "-",
    ]
    sort = [status.state, *numbers, status.host]
    return {"name": status.run, "cells": cells, "sort": sort, "reason": (status.reason or "").partition("\n")[0]}


def _sweep(status: SweepStatus) -> dict[str, Any]:
    interval = f"{status.low:.3g} to {status.high:.3g}" if status.low is not None and status.high is not None else "-"
    cells = [
        status.state,
        str(status.finished),
        str(len(status.running)),
        f"${status.spent_usd:,.2f}",
        f"${status.final_usd:,.2f}",
        _shown(status.answer, "{:.4g}"),
        interval,
    ]
    return {"name": status.sweep, "cells": cells}


def _shown(value: float | None, form: str) -> str:
    return "-" if value is None else form.format(value)
