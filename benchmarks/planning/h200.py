"""Memory and time on one GPU beside what the planner says, on the models that Skytrain trains.

    python benchmarks/planning/h200.py [--out FOLDER] [--minutes 4.5]

Needs torch and this repository's `src` on PYTHONPATH, nothing else. Writes FOLDER/planning.json and FOLDER/planning.md. What does
not fit into the minutes is left out and named. `--device cpu` runs tiny shapes, to try the script itself; without a GPU and without
that option nothing is measured.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import importlib.util
import json
import statistics
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from skytrain.config import AdamWConfig, DecoderConfig
from skytrain.models.decoder import Decoder
from skytrain.models.loss import lm_loss
from skytrain.planning.communication import Node
from skytrain.planning.measurements import Measurement, decoder_fields, predict, warm_worst
from skytrain.planning.memory import Job, fused_serves, path_of, rank_memory
from skytrain.planning.mesh import Mesh
from skytrain.planning.search import largest_micro_batch
from skytrain.training.optimizers import make_optimizer

GIB = 2**30
HAS_FUSED = importlib.util.find_spec("skytrain.models.fused") is not None
SINGLE = Mesh()
OPTIMIZER = AdamWConfig(name="adamw", lr=1e-4, beta1=0.9, beta2=0.95, eps=1e-8, weight_decay=0.1)
GPT2 = DecoderConfig(
    name="gpt2-124m", family="gpt2", layers=12, width=768, heads=12, kv_heads=None, head_size=None, mlp_width=None,
    vocab_size=50257, pad_vocab_to=128, max_length=4096, dropout=0.0, tied_head=True, norm="layernorm", norm_eps=1e-5,
    post_norms=False, qk_norm=False, activation="gelu_tanh", gated_mlp=False, bias="all", positions="learned",
    rope_theta=None, rope_scaling=None, window=None, window_every=1, attention_scale=None, attention_softcap=None,
    logit_softcap=None, scale_embedding=False,
)  # fmt: skip
MEDIUM = replace(GPT2, name="gpt2-355m", layers=24, width=1024, heads=16)
LLAMA = replace(
    GPT2, name="llama-3.2-1b", family="llama", layers=16, width=2048, heads=32, kv_heads=8, mlp_width=8192, vocab_size=128256,
    norm="rmsnorm", activation="silu", gated_mlp=True, bias="none", positions="rope", rope_theta=5e5,
)  # fmt: skip
TINY = replace(GPT2, name="tiny", layers=2, width=64, heads=4, vocab_size=1000)


class Bench:
    def __init__(self, device: str, minutes: float) -> None:
        self.device = torch.device(device)
        self.ends_at = time.monotonic() + 60 * minutes
        self.cuda = device == "cuda"
        self.name = torch.cuda.get_device_name() if self.cuda else "NVIDIA H200"
        node = Node.of_device(self.name)
        assert node is not None, f"{self.name} is not in the planner's table"
        self.node = node
        self.left_out: list[str] = []

    def has(self, seconds: float, what: str) -> bool:
        if time.monotonic() + seconds < self.ends_at:
            return True
        self.left_out.append(what)
        return False

    def memory_bytes(self) -> float:
        return float(torch.cuda.get_device_properties(0).total_memory) if self.cuda else 8.0 * GIB

    @contextlib.contextmanager
    def model(self, job: Job) -> Iterator[Any]:
        """A model and its optimizer, and nothing left of the one before."""
        self.clear()
        torch.manual_seed(0)
        with self.device:  # torch's own initial values, made on the device: they do not matter here, and seconds do
            model = Decoder(job.model)
        model.recompute = "full" if job.checkpointing else "none"
        loss = {"eager": lambda: lm_loss, "compiled": lambda: torch.compile(lm_loss, dynamic=False), "fused": _fused}[
            path_of(job, SINGLE)
        ]()
        yield model, make_optimizer(model, OPTIMIZER, fused=self.cuda), loss

    def clear(self) -> None:
        if "torch._dynamo" in sys.modules:
            torch._dynamo.reset()
        gc.collect()
        if self.cuda:
            torch.cuda.empty_cache()

    def steps(self, job: Job, trained: Any, count: int) -> list[float]:
        """Seconds of each optimizer step, as the trainer does it: autocast, mean over micro-batches, clipping, fused AdamW."""
        model, optimizer, loss_of = trained
        seconds = []
        for _ in range(count):
            began = time.perf_counter()
            for _ in range(job.accumulation):
                batch = torch.randint(
                    job.model.vocab_size, (job.micro_batch, job.sequence_length + 1), device=self.device
                )
                with torch.autocast(self.device.type, torch.bfloat16, enabled=path_of(job, SINGLE) != "fused"):
                    loss = loss_of(model, batch[:, :-1], batch[:, 1:])
                (loss / job.accumulation).backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
            if self.cuda:
                torch.cuda.synchronize()
            seconds.append(time.perf_counter() - began)
        return seconds

    def peak(self, job: Job, count: int = 2) -> tuple[int, int] | str:
        """(allocated, reserved) bytes at the peak, or why it did not run: out of memory, or a kernel that does not go so far."""
        try:
            with self.model(job) as trained:
                if self.cuda:
                    torch.cuda.reset_peak_memory_stats()
                self.steps(job, trained, count)
                return (torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved()) if self.cuda else (0, 0)
        except RuntimeError as error:  # out of memory is one of them
            held = torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved()
            return f"{type(error).__name__}: {error} (peak {held[0]} bytes allocated, {held[1]} reserved)"


def _fused() -> Any:
    """The path that the trainer takes for GPT-2's shape on a GPU."""
    from skytrain.models.fused import Kernels, fused_loss

    kernels = Kernels(attention="cudnn" if torch.cuda.get_device_capability() >= (9, 0) else "flash")
    return lambda model, tokens, targets: fused_loss(model, tokens, targets, kernels)


def memory_table(bench: Bench, shapes: list[tuple[DecoderConfig, int, list[int]]]) -> list[dict[str, Any]]:
    rows = []
    for model, length, micro_batches in shapes:
        for fused, checkpointing in ((False, False), (False, True), (True, False)):
            if fused and not (bench.cuda and HAS_FUSED and fused_serves(model)):
                continue
            for micro_batch in micro_batches:
                for accumulation in (1, 2) if micro_batch == micro_batches[1] else (1,):
                    job = Job(model, length, micro_batch, accumulation, checkpointing=checkpointing, fused=fused)
                    if not bench.has(15, f"memory of {model.name} at {micro_batch}, {path_of(job, SINGLE)}"):
                        continue
                    rows.append(_memory_row(job, rank_memory(job, SINGLE).allocated, bench.peak(job)))
                    print("memory", rows[-1], file=sys.stderr, flush=True)
    return rows


def _memory_row(job: Job, predicted: float, found: tuple[int, int] | str) -> dict[str, Any]:
    measured = None if isinstance(found, str) else found
    return {
        "model": job.model.name,
        "length": job.sequence_length,
        "micro_batch": job.micro_batch,
        "accumulation": job.accumulation,
        "checkpointing": job.checkpointing,
        "path": path_of(job, SINGLE),
        "predicted_bytes": predicted,
        "measured_bytes": measured[0] if measured else None,
        "reserved_bytes": measured[1] if measured else None,
        "error": predicted / measured[0] - 1 if measured and measured[0] else None,
        "reason": found if isinstance(found, str) else None,
    }


def largest_table(bench: Bench, shapes: list[tuple[DecoderConfig, int]]) -> list[dict[str, Any]]:
    """The largest micro-batch that the planner calls fitting must run, and a quarter more must not."""
    rows = []
    for model, length in shapes:
        for fused, checkpointing in ((False, False), (False, True), (True, False)):
            if fused and not (HAS_FUSED and fused_serves(model)):
                continue
            if not bench.has(25, f"largest micro-batch of {model.name}"):
                continue
            job = Job(model, length, 1, 2, checkpointing=checkpointing, fused=fused)
            largest = largest_micro_batch(job, SINGLE, bench.memory_bytes())
            beyond = -(-largest * 5 // 4)
            at, over = (bench.peak(replace(job, micro_batch=size), count=2) for size in (largest, beyond))
            rows.append(
                {
                    "model": model.name,
                    "length": length,
                    "path": path_of(job, SINGLE),
                    "checkpointing": checkpointing,
                    "largest": largest,
                    "runs": not isinstance(at, str),
                    "at_largest": at,
                    "beyond": beyond,
                    "beyond_runs": not isinstance(over, str),
                    "at_beyond": over,
                }
            )
            print("largest", rows[-1], file=sys.stderr, flush=True)
    return rows


def time_table(
    bench: Bench, model: DecoderConfig, at: tuple[int, int], others: list[tuple[int, int]], path: str
) -> list[dict[str, Any]]:
    """Calibrates at one (length, micro-batch), then predicts the others."""
    if path == "fused" and not HAS_FUSED:
        bench.left_out.append(f"the fused {model.name}, which this version has not")
        return []
    rows: list[dict[str, Any]] = []
    known: list[Measurement] = []
    for length, micro_batch in [at, *others]:
        job = Job(model, length, micro_batch, 1, compiled=path == "compiled", fused=path == "fused")
        if not bench.has(
            60 if path == "compiled" else 12,
            f"time of {model.name} at {micro_batch} x {length}, {path}",
        ):
            continue
        with bench.model(job) as trained:
            seconds = bench.steps(job, trained, 20)
        worst, median = warm_worst(seconds), statistics.median(seconds[10:20])
        predicted = predict(job, SINGLE, bench.node, known)
        rows.append({
            "model": model.name, "length": length, "micro_batch": micro_batch, "path": path, "source": predicted.source,
            "predicted_seconds": predicted.seconds, "worst_seconds": worst, "median_seconds": median,
            "tokens_per_s": micro_batch * length / median, "error": predicted.seconds / worst - 1, "steps_seconds": seconds,
        })  # fmt: skip
        print("time", {k: v for k, v in rows[-1].items() if k != "steps_seconds"}, file=sys.stderr, flush=True)
        if not known:
            known.append(
                Measurement(
                    bench.name,
                    1,
                    model.name,
                    decoder_fields(model),
                    length,
                    micro_batch,
                    1,
                    "single",
                    "bf16-mixed",
                    path_of(job, SINGLE),
                    False,
                    worst,
                    None,
                    time.strftime("%Y-%m-%d"),
                    torch.__version__,
                )
            )
    return rows


def markdown(found: dict[str, Any]) -> str:
    lines = [
        f"# Planner beside {found['device']}, torch {found['torch']}",
        "",
        "| model | length | micro-batch | accumulation | checkpointing | predicted GiB | measured GiB | reserved GiB | error |",
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for row in found["memory"]:
        measured = (
            (f"{row['measured_bytes'] / GIB:.2f}", f"{row['reserved_bytes'] / GIB:.2f}", f"{row['error']:+.1%}")
            if row["error"] is not None
            else (row["reason"] or "not on this device", "", "")
        )
        lines.append(
            f"| {row['model']}, {row['path']} | {row['length']} | {row['micro_batch']} | {row['accumulation']} | {'yes' if row['checkpointing'] else 'no'} | {row['predicted_bytes'] / GIB:.2f} | {measured[0]} | {measured[1]} | {measured[2]} |"
        )
    lines += [
        "",
        "| model | length | checkpointing | largest micro-batch | runs | a quarter more | runs |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    lines += [
        f"| {row['model']}, {row['path']} | {row['length']} | {'yes' if row['checkpointing'] else 'no'} | {row['largest']} | {row['runs']} | {row['beyond']} | {row['beyond_runs']} |"
        for row in found["largest"]
    ]
    lines += [
        "",
        "| model | mode | length | micro-batch | predicted ms | worst of steps 10-19, ms | median ms | tokens/s | prediction | error |",
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    lines += [
        f"| {row['model']} | {row['path']} | {row['length']} | {row['micro_batch']} | {row['predicted_seconds'] * 1e3:.1f} | {row['worst_seconds'] * 1e3:.1f} | {row['median_seconds'] * 1e3:.1f} | {row['tokens_per_s']:,.0f} | {row['source']} | {row['error']:+.1%} |"
        for row in found["time"]
    ]
    return "\n".join([*lines, "", "Left out for lack of time: " + ("; ".join(found["left_out"]) or "nothing"), ""])


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, default=Path("planning-gpu"))
    parser.add_argument("--minutes", type=float, default=4.5)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    arguments = parser.parse_args()
    if arguments.device == "cuda" and not torch.cuda.is_available():
        print("no GPU here: nothing measured")
        return
    bench = Bench(arguments.device, arguments.minutes)
    found: dict[str, Any] = {"device": bench.name, "torch": torch.__version__, "memory_bytes": bench.memory_bytes()}
    if bench.cuda:  # (free, total): what CUDA's context takes is the difference
        found["context"] = torch.cuda.mem_get_info()
    if bench.cuda:
        # Calibrated where the device is clearly the limit: a step that the host holds up says little about the GPU.
        found["time"] = time_table(
            bench, GPT2, (1024, 64), [(1024, 4), (1024, 16), (256, 64), (2048, 8), (4096, 4)], "fused"
        )
        found["time"] += time_table(bench, GPT2, (1024, 64), [(1024, 4), (1024, 16), (2048, 8)], "eager")
        found["time"] += time_table(bench, MEDIUM, (1024, 16), [(1024, 4), (2048, 8)], "fused")
        found["time"] += time_table(bench, LLAMA, (2048, 4), [(2048, 1), (2048, 8), (4096, 2), (1024, 8)], "eager")
        shapes = [(GPT2, 1024, [1, 8, 64]), (MEDIUM, 1024, [1, 8, 48]), (LLAMA, 2048, [1, 4, 12])]
        found["memory"] = memory_table(bench, shapes)
        found["largest"] = largest_table(bench, [(GPT2, 1024), (MEDIUM, 1024), (LLAMA, 2048)])
        found["time"] += time_table(bench, GPT2, (1024, 64), [(1024, 16)], "compiled")
        compiled = Job(GPT2, 1024, 64, compiled=True)
        if bench.has(60, "memory of the compiled GPT-2 124M"):
            found["memory"].append(_memory_row(compiled, rank_memory(compiled, SINGLE).allocated, bench.peak(compiled)))
    else:
        found["time"] = time_table(bench, TINY, (64, 4), [(64, 2), (32, 4)], "eager")
        found["memory"] = memory_table(bench, [(TINY, 64, [1, 2])])
        found["largest"] = []
    found["left_out"] = bench.left_out
    arguments.out.mkdir(parents=True, exist_ok=True)
    (arguments.out / "planning.json").write_text(json.dumps(found, indent=1))
    (arguments.out / "planning.md").write_text(markdown(found))
    print(markdown(found))


if __name__ == "__main__":
    main()
