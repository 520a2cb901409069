"""`skytrain bench loss`: what a validation loss costs with several settings."""

from __future__ import annotations

import json
import shlex
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from ..config import Config, SkytrainError
from .bench_serve import Instance, MarketName, Price, Region
from .options import ConfigDirs, Json, Overrides, compose_overrides

Try = Annotated[
    list[str],
    typer.Option(
        "--try", metavar="'KEY=VALUE ...'", help="Settings to compare, in quotes. Repeatable; the first is the base."
    ),
]
TargetLoss = Annotated[
    float | None,
    typer.Option(
        "--loss",
        min=0.0,
        metavar="NATS",
        help="The validation loss to reach. Default: that of the first settings at their end, with the worst seed.",
        show_default=False,
    ),
]
Seeds = Annotated[int, typer.Option(min=1, metavar="N", help="Runs of each settings, with the seeds 1 to N.")]
Out = Annotated[
    Path | None,
    typer.Option("--out", metavar="FOLDER", help="Write results.json and the plots there.", show_default=False),
]


def bench_loss(
    tries: Try,
    overrides: Overrides = None,
    config_dir: ConfigDirs = None,
    loss: TargetLoss = None,
    seeds: Seeds = 3,
    usd_per_hour: Price = None,
    instance: Instance = None,
    region: Region = "us-east-1",
    market: MarketName = "spot",
    out: Out = None,
    as_json: Json = False,
) -> None:
    """Compare what a validation loss costs with several settings.

    Trains each of them on one text.

    Prints tokens, minutes and dollars to the loss, as means over seeds with 95% intervals. Settings after the options hold
    for all that do not set them; prepare the text first. Runs are kept in the store as loss-SETTINGS-SEED-HASH: the same
    command resumes them, and other settings train others.

    \b
    Example:
      skytrain bench loss data=openwebtext --instance p5.4xlarge --try recipe=gpt2-124m-openwebtext --try recipe=modern-124m
    """
    from ..pipelines import bench_loss as pipeline
    from ..pipelines.bench_serve import instance_price, make_folder
    from .console import print_table, reporter

    if usd_per_hour is None and instance is not None:
        usd_per_hour = instance_price(instance, region, market)
    common = overrides or []
    configs: dict[str, list[Config]] = {}
    for words, own in _split(tries, common).items():
        composed = [
            compose_overrides([*common, *own, f"seed={seed}"], config_dir).config for seed in range(1, seeds + 1)
        ]
        configs[words] = [replace(config, run=pipeline.run_name(words, config)) for config in composed]
    if out is not None:
        make_folder(out)
    with reporter() as console:
        bench = pipeline.bench_loss(configs, console, loss=loss, usd_per_hour=usd_per_hour)
    files = pipeline.write_bench(bench, out) if out is not None else []
    if as_json:
        print(json.dumps(bench.to_json()))
        return
    print_table(pipeline.loss_rows(bench))
    if files:
        print(f"results: {', '.join(map(str, files))}")


def _split(tries: list[str], common: list[str]) -> dict[str, list[str]]:
    """Return the overrides of each --try by its text; raise for those that the bench itself decides."""
    split = {}
    for words in tries:
        try:
            split[words] = shlex.split(words)
        except ValueError as error:
            raise SkytrainError(
                f"--try {words}: {error}\n  quote the whole once, such as --try 'optimizer.lr=1e-3'"
            ) from None
    for word in (*common, *(word for own in split.values() for word in own)):
        if word.startswith(("seed=", "run=")):
            raise SkytrainError(
                f"{word}: bench loss names its runs and trains the seeds 1 to N\n  give the number: --seeds N"
            )
    return split
