"""Memory and time on one GPU against the planner's predictions, for models that Skytrain trains.

    python benchmarks/planning/h200.py [--out FOLDER] [--minutes 4.4]
    python benchmarks/planning/h200.py --long [--out FOLDER] [--minutes 1.7]      # lengths of 4,096 to 65,536

Each probe is a process of its own (probe.py), ended when its time is over. The order is that of importance,
results are in FOLDER/planning.json after each probe, and what the minutes did not allow is named there.
FOLDER/planning.md has the tables. `--device cpu` runs tiny shapes, to try the script itself.
"""

from __future__ import annotations

import argparse
import json
import math
import multiprocessing
import os
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

os.environ["PYTORCH_NVML_BASED_CUDA_CHECK"] = (
    "1"  # asking whether there is a GPU must not start CUDA here: forks could not use it
)

import probe  # imports torch, once for all probes
import tables
from shapes import GPT2, LLAMA, MEDIUM, MODERN, SINGLE, TINY

from skytrain.config import DecoderConfig
from skytrain.planning import largest_micro_batch
from skytrain.planning.memory import TrainingJob, path_of, rank_memory

Row = dict[str, Any]
QUARTER_MORE = 1.25
STEP_BACK = 0.03  # of the memory, for the next attempt where the largest micro-batch did not run
TIMED_STEPS = 30  # the worst of steps 10 to 19, as `--measure` has it, and a median over more of them
LONG_STEPS = 12
LEAST_SECONDS = 6.0  # under which no probe is begun


class Bench:
    def __init__(self, device: str, minutes: float, out: Path) -> None:
        self.device = device
        self.out = out
        self.ends_at = time.monotonic() + 60 * minutes
        self.found: Row = {"memory": [], "largest": [], "time": [], "attention": [], "left_out": []}
        self.processes: Any = multiprocessing.get_context("fork")
        out.mkdir(parents=True, exist_ok=True)

    def left(self) -> float:
        return self.ends_at - time.monotonic()

    def start(self, what: str, probing: Callable[..., None], *arguments: Any) -> tuple[Any, Connection]:
        here, there = self.processes.Pipe(duplex=False)
        process = self.processes.Process(target=probing, args=(*arguments, self.device, there.send), daemon=True)
        process.start()
        there.close()
        print(f"{self.left():5.0f} s left: {what}", file=sys.stderr, flush=True)
        return process, here

    def run(self, what: str, limit: float, probing: Callable[..., None], *arguments: Any) -> Iterator[Row]:
        """The rows that a probe tells, as it tells them; what it did not get to is named."""
        if self.left() < LEAST_SECONDS:
            self.found["left_out"].append(what)
            return
        process, here = self.start(what, probing, *arguments)
        yield from self.listen(what, process, here, time.monotonic() + min(limit, self.left()))

    def listen(self, what: str, process: Any, here: Connection, until: float) -> Iterator[Row]:
        try:
            while here.poll(max(0.0, until - time.monotonic())):
                row = here.recv()
                print("   ", {key: value for key, value in row.items() if key != "steps_seconds"}, file=sys.stderr)
                yield row
                self.save()
            self.found["left_out"].append(f"{what}: the rest, for lack of time")
        except EOFError:  # it has told everything
            process.join(5)
            if process.exitcode:
                self.found["left_out"].append(f"{what}: ended with exit code {process.exitcode}")
        finally:
            process.kill()
            process.join()
            self.save()

    def save(self) -> None:
        part = self.out / "planning.part"
        part.write_text(json.dumps(self.found, indent=1))
        part.replace(self.out / "planning.json")


def name_of(job: TrainingJob) -> str:
    again = ", checkpointing" if job.checkpointing else ""
    return f"{job.model.name}, {path_of(job, SINGLE)}, {job.precision}{again}"


def fields_of(job: TrainingJob) -> Row:
    return {
        "model": job.model.name,
        "length": job.sequence_length,
        "path": path_of(job, SINGLE),
        "precision": job.precision,
        "checkpointing": job.checkpointing,
    }


def modes(model: DecoderConfig, length: int, fused: bool) -> Iterator[TrainingJob]:
    yield TrainingJob(model, length, 1)
    yield TrainingJob(model, length, 1, checkpointing=True)
    if fused:
        yield TrainingJob(model, length, 1, fused=True)


def memory(bench: Bench, job: TrainingJob, sizes: list[tuple[int, int]], limit: float = 25) -> None:
    what = f"memory of {name_of(job)}"
    for row in bench.run(what, limit, probe.memory, job, sizes):
        keep_memory(bench, job, row)


def keep_memory(bench: Bench, job: TrainingJob, row: Row) -> None:
    told = replace(job, micro_batch=row["micro_batch"], accumulation=row["accumulation"])
    bench.found["memory"].append(fields_of(job) | row | {"predicted_bytes": rank_memory(told, SINGLE).allocated})


def largest(bench: Bench, job: TrainingJob, total_bytes: float) -> None:
    """The largest micro-batch that the planner calls fitting must run, and a quarter more must not.

    Where it does not run, smaller ones are tried, so that one visit to the GPU tells how wrong the planner was.
    """
    for back in range(5):
        called = largest_micro_batch(job, SINGLE, total_bytes * (1 - STEP_BACK * back))
        if attempt(bench, job, called, "called fitting" if back == 0 else f"{STEP_BACK * back:.0%} less memory"):
            break
    first = largest_micro_batch(job, SINGLE, total_bytes)
    attempt(bench, job, math.ceil(QUARTER_MORE * first), "a quarter more")


def attempt(bench: Bench, job: TrainingJob, micro_batch: int, why: str) -> bool:
    tried = replace(job, micro_batch=micro_batch)
    for row in bench.run(f"{name_of(job)} at {micro_batch}, {why}", 25, probe.runs, tried):
        predicted = rank_memory(tried, SINGLE)
        bench.found["largest"].append(
            fields_of(job) | row
            | {"micro_batch": micro_batch, "why": why, "predicted_bytes": predicted.allocated, "planned_bytes": predicted.total}
        )  # fmt: skip
        return bool(row["ran"])
    return True  # nothing was learned: no reason to try a smaller one


def seconds(
    bench: Bench, job: TrainingJob, at: list[tuple[int, int]], limit: float = 45, steps: int = TIMED_STEPS
) -> None:
    """The first (length, micro-batch) calibrates the planner for the others."""
    for row in bench.run(f"time of {name_of(job)}", limit, probe.seconds, job, at, steps):
        if "steps_seconds" not in row:
            bench.found["left_out"].append(f"{name_of(job)} at {row['length']} x {row['micro_batch']}: {row['reason']}")
            continue
        bench.found["time"].append(
            fields_of(job) | row | {"calibrates": (row["length"], row["micro_batch"]) == at[0], "graphs": job.graphs}
        )


def long_lengths(bench: Bench) -> None:
    """Attention by kernel and length, steps without any calibration, and what full recomputation holds."""
    shapes = [probe.AttentionShape(32, 8, 64), probe.AttentionShape(32, 8, 128), probe.AttentionShape(12, 12, 64)]
    what = "attention at 1,024 to 65,536"
    for row in bench.run(what, 25, probe.attention, shapes, [1024, 4096, 16384, 32768, 65536], 65536):
        bench.found["attention"].append(row)
    fused = TrainingJob(GPT2, 1024, 1, fused=True)
    again = TrainingJob(LLAMA, 16384, 1, checkpointing=True)
    long = LONG_STEPS
    memory(bench, again, [(1, 1), (2, 1)], 15)
    memory(bench, replace(again, sequence_length=32768), [(1, 1)], 15)
    seconds(bench, fused, [(1024, 64), (1024, 16), (4096, 8)], 20, long)
    seconds(bench, replace(fused, model=LLAMA), [(2048, 4), (16384, 1), (32768, 1)], 25, long)
    seconds(bench, again, [(2048, 4), (16384, 1)], 15, long)
    seconds(bench, replace(fused, model=MODERN), [(1024, 64), (16384, 2), (65536, 1)], 20, long)
    seconds(bench, replace(fused, graphs=True), [(1024, 8)], 12, long)
    seconds(bench, TrainingJob(LLAMA, 2048, 1), [(2048, 4), (16384, 1)], 12, long)
    memory(bench, replace(fused, model=LLAMA, sequence_length=16384), [(1, 1), (2, 1)], 12)


def on_a_gpu(bench: Bench, total_bytes: float) -> None:
    shapes = [(GPT2, 1024, True), (LLAMA, 2048, False), (MEDIUM, 1024, True)]
    compiled = TrainingJob(GPT2, 1024, 64, compiled=True)
    # Compiling is the host's work and leaves its results on disk; memory can be measured meanwhile, time cannot.
    background = bench.start("compiles in the background", probe.memory, compiled, [(64, 1)])
    began = time.monotonic()
    small = {"gpt2-124m": [8, 64], "gpt2-355m": [8, 32], "llama-3.2-1b": [1, 8]}
    for model, length, fused in shapes:
        for job in modes(model, length, fused):
            low, high = small[model.name]
            memory(bench, job, [(low, 1), (low, 2), (high, 1)])
    for row in bench.listen("memory of the compiled GPT-2", *background, began + 100):
        keep_memory(bench, compiled, row)
    for model, length, fused in shapes:
        for job in modes(model, length, fused):
            largest(bench, replace(job, accumulation=2), total_bytes)
    # Calibrated where the device is clearly the limit: a step that the host holds up says little about the GPU.
    fused = TrainingJob(GPT2, 1024, 1, fused=True)
    seconds(bench, fused, [(1024, 64), (1024, 16), (1024, 4), (1024, 32), (256, 64), (2048, 8), (4096, 4), (2048, 32)])
    seconds(bench, TrainingJob(LLAMA, 2048, 1), [(2048, 4), (2048, 1), (2048, 8), (4096, 2), (1024, 8)])
    seconds(bench, TrainingJob(GPT2, 1024, 1), [(1024, 64), (1024, 16), (1024, 4), (2048, 8), (4096, 8)])
    seconds(bench, replace(fused, model=MEDIUM), [(1024, 16), (1024, 4), (1024, 32), (2048, 8)])
    seconds(bench, TrainingJob(GPT2, 1024, 1, compiled=True), [(1024, 64)])
    for precision in ("bf16-true", "16-mixed", "32-true"):
        seconds(bench, TrainingJob(GPT2, 1024, 1, precision=precision), [(1024, 16), (1024, 4)])


def on_a_cpu(bench: Bench, total_bytes: float) -> None:
    job = TrainingJob(TINY, 64, 1)
    background = bench.start("compiles in the background", probe.memory, replace(job, checkpointing=True), [(2, 1)])
    memory(bench, job, [(1, 1), (2, 2)])
    for row in bench.listen("the background", *background, time.monotonic() + 30):
        keep_memory(bench, job, row)
    attempt(bench, replace(job, accumulation=2), 3, "called fitting")
    seconds(bench, job, [(64, 4), (64, 2), (32, 4)])
    for row in bench.run("attention", 20, probe.attention, [probe.AttentionShape(4, 2, 16)], [32, 64], 128):
        bench.found["attention"].append(row)
    seconds(bench, replace(job, precision="bf16-true"), [(64, 4)])


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, default=Path("planning-gpu"))
    parser.add_argument("--minutes", type=float, default=4.4)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--long", action="store_true", help="only what the lengths above 4,096 need")
    arguments = parser.parse_args()
    bench = Bench(arguments.device, arguments.minutes, arguments.out)
    for way in ("fork", "spawn"):  # a fork is quicker, but fails where an import has touched the driver
        bench.processes = multiprocessing.get_context(way)
        for row in bench.run(f"the machine ({way})", 30, probe.machine):
            bench.found |= row
        if "device" in bench.found:
            break
    else:
        sys.exit("no GPU answered: nothing measured")
    if arguments.long:
        long_lengths(bench)
    else:
        (on_a_gpu if arguments.device == "cuda" else on_a_cpu)(bench, bench.found["memory_bytes"])
    bench.save()
    text = tables.report(bench.found)
    (arguments.out / "planning.md").write_text(text)
    print(text)


if __name__ == "__main__":
    main()
