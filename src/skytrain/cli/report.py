"""`skytrain report`: a run or a sweep as one HTML page."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from .options import ConfigDirs, StoreOverrides, compose_overrides

Name = Annotated[
    str, typer.Argument(metavar="RUN|SWEEP", help="The name of a run, a merged model or a sweep.", show_default=False)
]
Out = Annotated[
    Path | None, typer.Option("--out", metavar="FILE", help="Also write the page to this file.", show_default=False)
]


def report(name: Name, overrides: StoreOverrides = None, out: Out = None, config_dir: ConfigDirs = None) -> None:
    """Write one HTML page of a run or a sweep.

    The page has the losses, speed, MFU and dollars as plots, downstream tasks, samples, attempts with how each ended,
    costs by machine, and every setting. It is one file, which needs nothing from the network, and is kept in the run's
    folder of the store as report.html. Run it again for a newer one: it can be read while the run trains.

    \b
    Examples:
      skytrain report my-run
      skytrain report my-run store.root=s3://bucket/project --out my-run.html
      skytrain report my-sweep --out sweep.html
    """
    from ..pipelines.report import report as pipeline

    page = pipeline(compose_overrides(overrides, config_dir).config, name)
    if out is not None:
        out.write_text(page.html, encoding="utf-8")
    print(f"page: {out or page.url}")
