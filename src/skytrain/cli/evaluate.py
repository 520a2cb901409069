"""`skytrain evaluate`: loss, perplexity and bits per byte on held-out text."""

from __future__ import annotations

import dataclasses
import json
from typing import Annotated

import typer

from .options import ConfigDirs, From, Json, Overrides, Precision, Split, compose_overrides


def evaluate(
    overrides: Overrides = None,
    config_dir: ConfigDirs = None,
    source: From = None,
    tokens: Annotated[
        str | None,
        typer.Option(
            metavar="COUNT", help="Use only the first COUNT tokens, such as 100K. Default: all.", show_default=False
        ),
    ] = None,
    split: Split = "validation",
    precision: Precision = None,
    as_json: Json = False,
) -> None:
    """Measure a model: loss, perplexity, bits per byte.

    A run is measured on the data it was trained with, an exported folder on the data that KEY=VALUE chooses.
    Uses a GPU if there is one; trainer.device=cpu avoids it.

    \b
    Examples:
      skytrain evaluate
      skytrain evaluate --from my-run@1000 --tokens 1M
      skytrain evaluate --from my-model data=tinystories
    """
    config = compose_overrides(overrides, config_dir).config
    from ..pipelines.evaluate import LossRequest, evaluate as pipeline
    from .console import reporter

    with reporter() as console:
        label, report = pipeline(config, LossRequest(source, split, tokens, precision), console)
    if as_json:
        print(json.dumps({"model": label, "split": split, **dataclasses.asdict(report)}))
    else:
        print(
            f"{label} on {report.tokens} {split} tokens: loss {report.loss:.4f} | perplexity {report.perplexity:.2f} | "
            f"{report.bits_per_byte:.4f} bits per byte"
        )
