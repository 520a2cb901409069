"""`skytrain bench`: throughput and memory on the hardware at hand."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from .options import ConfigDirs, Json, Overrides, compose_overrides

app = typer.Typer(help="Measure this machine.", no_args_is_help=True, rich_markup_mode=None)


@app.callback()
def group() -> None:
    """Measure this machine."""


@app.command()
def single(
    overrides: Overrides = None,
    config_dir: ConfigDirs = None,
    steps: Annotated[int, typer.Option(min=1, help="Optimizer steps to time, after three that warm up.")] = 10,
    peer: Annotated[bool, typer.Option(help="Also time Hugging Face's model, compiled, at its best batch.")] = True,
    as_json: Json = False,
) -> None:
    """Time one device: through the trainer, in a bare loop, and beside Hugging Face's model; where the time goes, by kernel.

    skytrain bench single recipe=gpt2-124m-openwebtext
    """
    config = compose_overrides(overrides, config_dir).config
    from ..pipelines.bench import as_json as plain
    from ..pipelines.bench import bench_single, speed_line
    from .console import reporter

    with reporter() as console:
        bench = bench_single(config, console, steps=steps, peer=peer)
    if as_json:
        print(json.dumps(plain(bench)))
        return
    print(
        f"{config.model.name} on {bench.device}: {bench.path}, {config.trainer.precision}, {config.trainer.batch_tokens} tokens a step of {config.trainer.sequence_length}"
    )
    for speed in bench.speeds:
        print("  " + speed_line(speed))
    ours, bare = bench.speeds[0], bench.speeds[1]
    print(f"  the trainer costs {1 - ours.tokens_per_s / bare.tokens_per_s:.1%} over the bare loop")
    if len(bench.speeds) > 2:
        print(f"  {ours.tokens_per_s / bench.speeds[2].tokens_per_s:.2f}x {bench.speeds[2].name}")
    if bench.groups:
        print(f"  {'kernels of a step':<18} {'ms':>9} {'limit':>9} {'of limit':>9}")
        for row in bench.groups:
            limit = (
                f"{row.limit_milliseconds:9.1f} {row.limit_milliseconds / row.milliseconds:9.0%}"
                if row.limit_milliseconds and row.milliseconds
                else f"{'':>9} {'':>9}"
            )
            print(f"  {row.name:<18} {row.milliseconds:9.1f} {limit}")
