"""`skytrain bench`: throughput and memory on the hardware at hand."""

from __future__ import annotations

import dataclasses
import json
from typing import Annotated

import typer

from .options import ConfigDirs, Json, Overrides, compose_overrides

app = typer.Typer(
    help="Measure this machine.\n\nskytrain bench parallel recipe=quickstart trainer.micro_batch=4",
    no_args_is_help=True,
    rich_markup_mode=None,
)


@app.command()
def single(
    overrides: Overrides = None,
    config_dir: ConfigDirs = None,
    steps: Annotated[int, typer.Option(min=1, help="Optimizer steps to time, after three that warm up.")] = 10,
    peer: Annotated[bool, typer.Option(help="Also time Hugging Face's model, compiled, at its best batch.")] = True,
    cold: Annotated[bool, typer.Option(help="Also time the first step of a new process with empty caches.")] = True,
    as_json: Json = False,
) -> None:
    """Time one device, beside Hugging Face's model.

    Through the trainer and in a bare loop; on a GPU also where the time goes, by kernel.

    skytrain bench single recipe=gpt2-124m-openwebtext

    On a GPU the micro-batch is the fastest measured, unless trainer.micro_batch is given.
    """
    composed = compose_overrides(overrides, config_dir)
    config = composed.config
    from ..bench import bench_single, speed_line
    from .console import reporter

    with reporter() as console:
        bench = bench_single(config, console, steps=steps, peer=peer, cold=cold, given=composed.given)
    if as_json:
        print(json.dumps(dataclasses.asdict(bench)))
        return
    print(
        f"{config.model.name} on {bench.device}: {bench.path}, {bench.precision}, {config.trainer.batch_tokens} tokens a step of {config.trainer.sequence_length}"
    )
    for speed in bench.speeds:
        print("  " + speed_line(speed))
    ours, bare = bench.speeds[0], bench.speeds[1]
    print(f"  the trainer costs {1 - ours.tokens_per_s / bare.tokens_per_s:.1%} over the bare loop")
    if len(bench.speeds) > 2:
        print(f"  {ours.tokens_per_s / bench.speeds[2].tokens_per_s:.2f}x {bench.speeds[2].name}")
    if bench.cold_start_s is not None:
        print(f"  a new process with empty caches has done its first step after {bench.cold_start_s:.1f} s")
    if bench.groups:
        print(f"  {'kernels of a step':<18} {'ms':>9} {'limit':>9} {'of limit':>9}")
        for row in bench.groups:
            limit = (
                f"{row.limit_milliseconds:9.1f} {row.limit_milliseconds / row.milliseconds:9.0%}"
                if row.limit_milliseconds and row.milliseconds
                else f"{'':>9} {'':>9}"
            )
            print(f"  {row.name:<18} {row.milliseconds:9.1f} {limit}")


@app.command()
def parallel(
    overrides: Overrides = None,
    config_dir: ConfigDirs = None,
    steps: Annotated[int, typer.Option(min=1, help="Optimizer steps to time, after two that warm up.")] = 5,
    processes: Annotated[
        int | None,
        typer.Option(min=1, help="At most so many ranks. Default: one for each GPU or core.", show_default=False),
    ] = None,
    modes: Annotated[
        str, typer.Option(help="Only these, separated by commas: ddp,fsdp,tp,pp,cp,...", show_default=False)
    ] = "",
    as_json: Json = False,
) -> None:
    """Time every parallel mode against one device.

    Every mode that fits this machine, with batches that grow (weak scaling) and that do not (strong).

    skytrain bench parallel recipe=gpt2-124m-openwebtext

    skytrain bench parallel recipe=quickstart trainer.micro_batch=4    # on the cores of a laptop

    `efficiency` is tokens/s of a rank against one device alone, `talking` the share of a step in which a collective was under
    way, `memory` the worst rank's. Modes are only compared with each other on an idle machine.
    """
    from ..bench import bench_parallel, parallel_results, scaling_table
    from .console import reporter

    wanted = [mode for mode in modes.split(",") if mode]
    with reporter() as console:
        bench = bench_parallel(overrides or [], config_dir or [], console, steps=steps, largest=processes, modes=wanted)
    if as_json:
        print(json.dumps(parallel_results(bench)))
        return
    machine = bench.machine
    print(
        f"{bench.model}, sequences of {bench.sequence_length}, {bench.precision}, on {machine['devices']} x {machine['device']}, torch {machine['torch']}"
    )
    for line in scaling_table(bench):
        print("  " + line)
    print(f"  kept with its plot in {bench.folder}")
