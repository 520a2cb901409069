"""`skytrain plot`: one metric of runs as a picture."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from .options import ConfigDirs, compose_overrides
from .output import tell
from .reads import split_words

Arguments = Annotated[
    list[str],
    typer.Argument(
        metavar="RUN... [KEY=VALUE]",
        help="Up to 20 runs. store.root=s3://bucket/project chooses the store.",
        show_default=False,
    ),
]
Metric = Annotated[
    str, typer.Option("--metric", metavar="NAME", help="Such as val/loss or eval/hellaswag/harness_acc.")
]
Axis = Annotated[Literal["step", "tokens", "hours", "dollars"], typer.Option("--x", help="What the curves go over.")]
Out = Annotated[Path, typer.Option("--out", metavar="FILE", help="A file that ends with .png or .svg.")]
Log = Annotated[bool, typer.Option("--log", help="A logarithmic axis for the metric.")]


def plot(
    arguments: Arguments,
    metric: Metric = "train/loss",
    x: Axis = "step",
    out: Out = Path("plot.png"),
    log: Log = False,
    config_dir: ConfigDirs = None,
) -> None:
    """Draw one metric of runs as PNG or SVG.

    Losses have their minima marked and labelled. Tasks have error bars of one standard error, and the level of chance.
    Of a long run the line is the mean of neighbouring steps, and the band their lowest and highest values.

    \b
    Examples:
      skytrain plot my-run
      skytrain plot my-run another-run --metric val/loss --x dollars --out loss.png
      skytrain plot my-run --metric eval/hellaswag/harness_acc_norm --out hellaswag.svg
    """
    from ..pipelines.plot import plot as pipeline

    names, settings = split_words(arguments)
    config = compose_overrides(settings, config_dir).config
    missing = pipeline(config, names, metric, x, out, log_y=log)
    for name in missing:
        tell(f"warning: {name} is not in the plot: it has not recorded {metric} over {x}")
    print(f"plot: {out}")
