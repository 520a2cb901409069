"""Plot: one metric of one or more runs as PNG or SVG, from the store only."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ..config import Config, SkytrainError, nearest
from ..report import curves_svg, png_of, shown_metrics
from ..storage import open_store
from .curves import check_count, read_curves

FORMATS = (".png", ".svg")


def plot(config: Config, names: Sequence[str], metric: str, axis: str, out: Path, *, log_y: bool = False) -> list[str]:
    """Write the plot. Returns the runs that are not in it, because they have not recorded the metric or the axis."""
    if out.suffix not in FORMATS:
        raise SkytrainError(f"--out {out}: give a file that ends with {' or '.join(FORMATS)}")
    store = open_store(config.store)
    runs = [read_curves(store, name) for name in check_count(names)]
    known = shown_metrics(runs)
    if not known:
        raise SkytrainError("no metric of these runs is in the store yet")
    if metric not in known:
        guess = nearest(metric, known)
        hint = f"did you mean {guess}?" if guess else f"they have {', '.join(known)}"
        raise SkytrainError(f"--metric {metric}: no run has recorded it\n  {hint}")
    with_axis = [run for run in runs if axis in ("step", "tokens") or len(run.at(axis)[0])]
    svg = curves_svg(with_axis, metric, axis, log_y=log_y)
    if not svg:
        raise SkytrainError(f"--x {axis}: no run has recorded it\n  {_remedy(axis)}")
    if out.suffix == ".png":
        out.write_bytes(png_of(svg))
    else:
        out.write_text(svg, encoding="utf-8")
    return [run.name for run in runs if run not in with_axis or metric not in run.curves]


def _remedy(axis: str) -> str:
    remedies = {
        "dollars": "set budget.usd_per_hour when you train, or rent machines: their prices are known",
        "hours": "hours need perf/step_ms, which training records",
    }
    return remedies.get(axis, "with a logarithmic axis, values must be above zero")
