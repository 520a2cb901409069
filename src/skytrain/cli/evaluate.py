"""`skytrain evaluate`: loss, perplexity and bits per byte on held-out text."""

from __future__ import annotations

import dataclasses
import json
from typing import Annotated

import typer

from .options import ConfigDirs, From, Json, Overrides, Precision, compose_overrides


def evaluate(
    overrides: Overrides = None,
    config_dir: ConfigDirs = None,
    source: From = None,
    tokens: Annotated[
        str | None,
        typer.Option(
            help="Measure on the first so many tokens (100K). Default: the whole validation split.", show_default=False
        ),
    ] = None,
    split: Annotated[str, typer.Option(help="train or validation")] = "validation",
    precision: Precision = None,
    as_json: Json = False,
) -> None:
    """Measure a model: loss, perplexity, bits per byte.

    skytrain evaluate --from my-run@1000

    A run is measured on the data it was trained with; an exported folder on the data that the KEY=VALUEs name.
    Runs on a GPU where there is one; trainer.device=cpu keeps it off.
    """
    config = compose_overrides(overrides, config_dir).config
    from ..pipelines.evaluate import LossRequest, evaluate as story
    from .console import reporter

    with reporter() as console:
        label, report = story(config, LossRequest(source, split, tokens, precision), console)
    if as_json:
        print(json.dumps({"model": label, "split": split, **dataclasses.asdict(report)}))
    else:
        print(
            f"{label} on {report.tokens} {split} tokens: loss {report.loss:.4f} | perplexity {report.perplexity:.2f} | {report.bits_per_byte:.4f} bits per byte"
        )
