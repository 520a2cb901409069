"""`skytrain bench`: throughput and memory on this machine."""

from __future__ import annotations

import dataclasses
import json
from typing import Annotated

import typer

from .bench_loss import bench_loss
from .bench_serve import bench_serve
from .options import ConfigDirs, Json, Overrides, compose_overrides

app = typer.Typer(
    help="Measure speed and memory on this machine.\n\n"
    "Example: skytrain bench parallel recipe=quickstart trainer.micro_batch=4",
    no_args_is_help=True,
    rich_markup_mode=None,
)

app.command("loss")(bench_loss)
app.command("serve")(bench_serve)


@app.command()
def single(
    overrides: Overrides = None,
    config_dir: ConfigDirs = None,
    steps: Annotated[
        int, typer.Option(min=1, metavar="N", help="Optimizer steps to time, after three warm-up steps.")
    ] = 10,
    peer: Annotated[bool, typer.Option(help="Also time the compiled Hugging Face model, at its best batch.")] = True,
    cold: Annotated[bool, typer.Option(help="Also time the first step of a new process with empty caches.")] = True,
    as_json: Json = False,
) -> None:
    """Time one device against the Hugging Face model.

    Times the trainer and a bare loop. On a GPU it also shows the time of each group of kernels, and it uses the fastest
    micro-batch unless trainer.micro_batch is given.

    Example: skytrain bench single recipe=gpt2-124m-openwebtext data=synthetic
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
        f"{config.model.name} on {bench.device}: {bench.path}, {bench.precision}, "
        f"{config.trainer.batch_tokens} tokens a step in sequences of {config.trainer.sequence_length}"
    )
    for speed in bench.speeds:
        print("  " + speed_line(speed))
    trainer = bench.speeds[0]
    bare = bench.speeds[1]
    print(f"  the trainer costs {1 - trainer.tokens_per_s / bare.tokens_per_s:.1%} over the bare loop")
    if len(bench.speeds) > 2:
        print(f"  {trainer.tokens_per_s / bench.speeds[2].tokens_per_s:.2f}x {bench.speeds[2].name}")
    if bench.cold_start_s is not None:
        print(f"  a new process with empty caches finishes its first step after {bench.cold_start_s:.1f} s")
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
    steps: Annotated[
        int, typer.Option(min=1, metavar="N", help="Optimizer steps to time, after two warm-up steps.")
    ] = 5,
    processes: Annotated[
        int | None,
        typer.Option(
            min=1, metavar="N", help="Use at most N ranks. Default: one for each GPU or core.", show_default=False
        ),
    ] = None,
    modes: Annotated[
        str, typer.Option(metavar="LIST", help="Only these modes: ddp,fsdp,tp,pp,cp,...", show_default=False)
    ] = "",
    as_json: Json = False,
) -> None:
    """Time every parallel mode against one device.

    Runs every mode that fits this machine, with a batch that grows with the ranks (weak scaling) and one that does not
    (strong scaling). Use an idle machine.

    \b
    efficiency   tokens/s of a rank, relative to a single device
    comm         share of a step during which a collective runs
    memory       peak memory of the rank that needs most

    \b
    Examples:
      skytrain bench parallel recipe=gpt2-124m-openwebtext
      skytrain bench parallel recipe=quickstart trainer.micro_batch=4    # on a laptop
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
        f"{bench.model}, sequences of {bench.sequence_length}, {bench.precision}, "
        f"on {machine['devices']} x {machine['device']}, torch {machine['torch']}"
    )
    for line in scaling_table(bench):
        print("  " + line)
    print(f"  results and plot: {bench.folder}")
