"""Times every parallel mode that fits this machine against one device, and writes results and a plot to the store."""

from __future__ import annotations

import dataclasses
import importlib.util
import json
import os
import platform
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

from .. import __version__
from ..config import Config, SkytrainError, child_environment, compose, format_count, has_layers
from ..runs import Reporter
from ..storage import open_store
from ..tokens import read_tokenizer_settings
from ..training import choose_device, with_precision
from .measurement import step_flops_per_token
from .parallel_worker import BenchTask, Steps
from .scaling_plot import Series, scaling_svg

CPU_FLOPS_A_STEP = 2e12  # about a minute of a core; larger configurations are meant for GPUs
LAUNCH_SECONDS = 900  # a mode that takes longer is reported as failed
# The least ranks at which a preset differs from those of fewer dimensions.
PRESETS = {
    "single": 1,
    "ddp": 2,
    "fsdp": 2,
    "tp": 2,
    "pp": 2,
    "cp": 2,
    "hsdp": 4,
    "tp-fsdp": 4,
    "pp-fsdp": 4,
    "pp-tp-fsdp": 8,
    "deepspeed-zero1": 2,
    "deepspeed-zero2": 2,
    "deepspeed-zero3": 2,
}


@dataclass(frozen=True)
class ModeRow:
    """One mode on a number of ranks."""

    mode: str
    ranks: int
    weak: Steps | None  # the batch grows with the ranks
    strong: Steps | None  # the batch stays that of one device
    problem: str | None = None

    def tokens_per_s(self, kind: str) -> float | None:
        steps: Steps | None = getattr(self, kind)
        return steps.batch_tokens / steps.step_seconds if steps else None


@dataclass(frozen=True)
class ParallelBench:
    """The results of all modes; the first row is one device."""

    model: str
    sequence_length: int
    precision: str
    machine: dict[str, Any]
    date: str
    rows: list[ModeRow]
    folder: str = ""  # where the results were stored

    def efficiency(self, row: ModeRow, kind: str) -> float | None:
        """Return the tokens per second and rank, relative to a single device."""
        single = self.rows[0].tokens_per_s(kind)
        mine = row.tokens_per_s(kind)
        return mine / row.ranks / single if single and mine else None


def bench_parallel(
    overrides: Sequence[str],
    config_dirs: Sequence[Path],
    reporter: Reporter,
    *,
    steps: int,
    largest: int | None,
    modes: Sequence[str] = (),
) -> ParallelBench:
    config = with_precision(compose(list(overrides), list(config_dirs), read_tokenizer=read_tokenizer_settings).config)
    device = choose_device(config)
    check_size(config, device)
    here = torch.cuda.device_count() if device == "cuda" else len(os.sched_getaffinity(0))
    if largest and device == "cuda" and largest > here:
        raise SkytrainError(f"--processes {largest}: this machine has {here} GPU(s), and each process needs one")
    cases = list(mode_cases(largest or here, modes))
    machine = _machine(device)
    rows = []
    if text := busy(machine):
        reporter.note(text)
    for number, (mode, ranks) in enumerate(cases):
        reporter.progress("bench", number, len(cases), f"{mode} x {ranks}")
        rows.append(_measure(config, list(overrides), list(config_dirs), mode, ranks, steps))
        reporter.note(row_line(rows[-1]))
    reporter.progress("bench", len(cases), len(cases), "")
    bench = ParallelBench(
        model=config.model.name,
        sequence_length=config.trainer.sequence_length,
        precision=config.trainer.compute_precision,
        machine=machine,
        date=datetime.now(UTC).isoformat(timespec="seconds"),
        rows=rows,
    )
    return store_results(bench, config)


def mode_cases(largest: int, modes: Sequence[str] = ()) -> Iterator[tuple[str, int]]:
    """Yield modes and ranks; one device comes first, because the others are compared with it."""
    unknown = [mode for mode in modes if mode not in PRESETS]
    if unknown:
        raise SkytrainError(f"--modes {unknown[0]}: no such mode\n  one of {', '.join(PRESETS)}")
    yield "single", 1
    ranks = 2
    while ranks <= largest:
        for mode, least in PRESETS.items():
            wanted = mode in modes if modes else not mode.startswith("deepspeed") or _has_deepspeed()
            if mode != "single" and wanted and ranks >= least:
                yield mode, ranks
        ranks *= 2


def _has_deepspeed() -> bool:
    return importlib.util.find_spec("deepspeed") is not None


def busy(machine: dict[str, Any]) -> str | None:
    """Return a warning if other processes use the cores."""
    if machine["backend"] == "gloo" and machine["load"] > machine["devices"] / 2:
        load = f"load {machine['load']} on {machine['devices']} cores"
        return f"warning: this machine is busy ({load}): the figures will be unreliable"
    return None


def check_size(config: Config, device: str) -> None:
    """Raise SkytrainError for a configuration that would take hours on a CPU."""
    if config.trainer.micro_batch is None:
        raise SkytrainError(
            "trainer.micro_batch=auto: modes are compared at one micro-batch\n"
            "  give a number, such as trainer.micro_batch=8"
        )
    if device == "cuda" or not has_layers(config.model):
        return
    flops = step_flops_per_token(config) * config.trainer.batch_tokens
    if flops > CPU_FLOPS_A_STEP:
        raise SkytrainError(
            f"a step of {config.model.name} with trainer.batch_tokens={config.trainer.batch_tokens} "
            f"is {format_count(flops)}FLOP, too much for a CPU\n"
            "  try: skytrain bench parallel recipe=quickstart trainer.micro_batch=4"
        )


def _measure(
    config: Config, overrides: list[str], config_dirs: list[Path], mode: str, ranks: int, steps: int
) -> ModeRow:
    """Measure one mode in new processes, so that memory starts empty and a mode that fails does not end the others."""
    base = config.trainer.batch_tokens
    batches = [base] if ranks == 1 else [base * ranks, base]
    with tempfile.TemporaryDirectory(prefix="skytrain-bench-") as scratch:
        task = BenchTask(
            overrides=overrides,
            config_dirs=[str(folder) for folder in config_dirs],
            preset=mode,
            batch_tokens=batches,
            steps=steps,
            result=str(Path(scratch) / "result.json"),
        )
        written = Path(scratch) / "task.json"
        written.write_text(json.dumps(dataclasses.asdict(task)))
        command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"]
        try:
            done = subprocess.run(
                [*command, "-m", "skytrain.bench.parallel_worker", str(written)],
                env=child_environment({"OMP_NUM_THREADS": "1"}),  # one core for each rank
                capture_output=True,
                text=True,
                timeout=LAUNCH_SECONDS,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return ModeRow(mode=mode, ranks=ranks, weak=None, strong=None, problem=f"not done after {LAUNCH_SECONDS} s")
        if done.returncode:
            return ModeRow(mode=mode, ranks=ranks, weak=None, strong=None, problem=_error_line(done.stderr))
        results = json.loads(Path(task.result).read_text())
    problem = next((each["problem"].splitlines()[0] for each in results if "problem" in each), None)
    measured = [None if "problem" in each else Steps(**each) for each in results]
    return ModeRow(mode=mode, ranks=ranks, weak=measured[0], strong=measured[-1], problem=problem)


def _error_line(stderr: str) -> str:
    """Return the most informative line that a failed launch printed."""
    lines = [line.strip() for line in stderr.splitlines() if "Error" in line or line.startswith("error:")]
    causes = [line for line in lines if "ChildFailedError" not in line and "elastic" not in line]
    return (causes or lines or ["failed without a message"])[0][:200]


def _machine(device: str) -> dict[str, Any]:
    cuda = device == "cuda"
    return {
        "device": torch.cuda.get_device_name() if cuda else platform.processor() or platform.machine(),
        "devices": torch.cuda.device_count() if cuda else len(os.sched_getaffinity(0)),
        "backend": "nccl" if cuda else "gloo",
        "host": platform.node(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "cuda": torch.version.cuda if cuda else None,
        "skytrain": __version__,
        "load": round(os.getloadavg()[0], 1),  # on a busy machine the figures are unreliable
    }


def store_results(bench: ParallelBench, config: Config) -> ParallelBench:
    """Write results and plot to the store, and return the results with their folder."""
    store = open_store(config.store)
    stamp = bench.date.replace(":", "").replace("-", "").partition("+")[0]
    folder = f"bench/parallel-{bench.model.rpartition('/')[2]}-{stamp}"
    bench = dataclasses.replace(bench, folder=store.url(folder))
    store.write(f"{folder}/results.json", json.dumps(parallel_results(bench), indent=1).encode())
    store.write(f"{folder}/scaling.svg", plot(bench).encode())
    return bench


def parallel_results(bench: ParallelBench) -> dict[str, Any]:
    plain = dataclasses.asdict(bench)
    for row, fields in zip(bench.rows, plain["rows"], strict=True):
        for kind in ("weak", "strong"):
            if fields[kind]:
                fields[kind]["tokens_per_s"] = row.tokens_per_s(kind)
                fields[kind]["efficiency"] = bench.efficiency(row, kind)
    return plain


def plot(bench: ParallelBench) -> str:
    """Plot tokens per second over ranks, by mode: weak scaling solid, strong dashed, the ideal dotted."""
    single = bench.rows[0].tokens_per_s("weak")
    series = []
    for mode in dict.fromkeys(row.mode for row in bench.rows if row.mode != "single"):
        for kind in ("weak", "strong"):
            points = [
                (row.ranks, speed)
                for row in bench.rows
                if row.mode == mode and (speed := row.tokens_per_s(kind)) is not None
            ]
            if points and single:
                series.append(Series(mode, [(1, single), *points], dashed=kind == "strong"))
    machine = bench.machine
    title = f"{bench.model}, {bench.precision}, on {machine['devices']} x {machine['device']}"
    return scaling_svg(title, single or 0.0, max(row.ranks for row in bench.rows), series)


def row_line(row: ModeRow) -> str:
    speeds = [f"{speed:,.0f} tokens/s {kind}" for kind in ("weak", "strong") if (speed := row.tokens_per_s(kind))]
    return f"{row.mode} x {row.ranks}: " + (" | ".join(speeds) or row.problem or "")


def scaling_table(bench: ParallelBench) -> list[str]:
    """Return the lines of a table for a terminal: weak scaling on the left, strong on the right."""
    heading = (
        f"{'':<16} {'':>5}  {'batch grows with the ranks (weak)':^44}   {'same batch (strong)':^30}",
        f"{'mode':<16} {'ranks':>5}  {'tokens/s':>10} {'efficiency':>10} {'comm':>8} {'memory':>12}   "
        f"{'tokens/s':>10} {'efficiency':>10} {'comm':>8}",
    )
    return [*heading, *(_line(bench, row) for row in bench.rows)]


def _line(bench: ParallelBench, row: ModeRow) -> str:
    start = f"{row.mode:<16} {row.ranks:>5}  "
    if row.weak is None and row.strong is None:
        return start + (row.problem or "")

    def speed(kind: str) -> str:
        rate = row.tokens_per_s(kind)
        efficiency = bench.efficiency(row, kind)
        steps: Steps | None = getattr(row, kind)
        if steps is None or rate is None or efficiency is None:
            return f"{'-':>10} {'-':>10} {'-':>8}"
        return f"{rate:>10,.0f} {efficiency:>10.0%} {steps.communication:>8.0%}"

    largest = row.weak or row.strong
    assert largest is not None
    line = f"{start}{speed('weak')} {largest.peak_bytes / 1e6:>9,.0f} MB   {speed('strong')}"
    return line + (f"  ({row.problem})" if row.problem else "")
