"""`skytrain report`: runs or a sweep as one HTML page."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from .options import ConfigDirs, compose_overrides
from .reads import split_words

Arguments = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[RUN|SWEEP]... [KEY=VALUE]",
        help="A run, a merged model or a sweep; or up to 20 runs to compare. Default: the newest run. "
        "store.root=s3://bucket/project chooses the store.",
        show_default=False,
    ),
]
Out = Annotated[
    Path | None,
    typer.Option(
        "--out",
        metavar="FILE",
        help="Write the page to this file. Default: in the run's folder of the store; of several runs compare.html here.",
        show_default=False,
    ),
]
COMPARISON = Path("compare.html")


def report(arguments: Arguments = None, out: Out = None, config_dir: ConfigDirs = None) -> None:
    """Write one HTML page of a run or a sweep, or compare runs.

    The page has every metric as a plot, with hover and zoom, over steps, tokens, hours or dollars: losses with their
    minima, tasks with error bars and the level of chance, speed, MFU, dollars with budget and projection. Below them are
    the attempts on the clock. The page of one run also has samples, costs by machine, and every setting.

    It is one file, which needs nothing from the network. Run it again for a newer one: runs can be read while they train.
    `skytrain dashboard` shows the same live.

    \b
    Examples:
      skytrain report
      skytrain report my-run
      skytrain report my-run another-run --out compare.html
      skytrain report my-run store.root=s3://bucket/project --out my-run.html
      skytrain report my-sweep --out sweep.html
    """
    from ..pipelines.report import compare, report as pipeline

    names, settings = split_words(dict.fromkeys(arguments or ()))
    config = compose_overrides(settings, config_dir).config
    if len(names) > 1:
        html = compare(config, names)
        out = out or COMPARISON
        out.write_text(html, encoding="utf-8")
        return print(f"page: {out}")
    page = pipeline(config, *names)
    if out is not None:
        out.write_text(page.html, encoding="utf-8")
    print(f"page: {out or page.url}")
