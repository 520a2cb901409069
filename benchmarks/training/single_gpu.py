"""Time of a GPT-2 step on one GPU, technique by technique, each in its own process with the same data.

python benchmarks/training/single_gpu.py --out logs        # every variant, then the table
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path

VARIANTS = {
    # name: (path, switches)
    "eager autocast": ("eager", {}),
    "compiled autocast": ("compiled", {}),
    "fused: none": ("fused", {"attention": "flash", "loss": False, "gelu": False, "norm": False}),
    "fused: attention cudnn": ("fused", {"attention": "cudnn", "loss": False, "gelu": False, "norm": False}),
    "fused: loss": ("fused", {"attention": "flash", "loss": True, "gelu": False, "norm": False}),
    "fused: gelu": ("fused", {"attention": "flash", "loss": False, "gelu": True, "norm": False}),
    "fused: norm": ("fused", {"attention": "flash", "loss": False, "gelu": False, "norm": True}),
    "fused: all, flash": ("fused", {"attention": "flash", "loss": True, "gelu": True, "norm": True}),
    "fused: all, cudnn": ("fused", {"attention": "cudnn", "loss": True, "gelu": True, "norm": True}),
}


def measure(name: str, micro_batch: int, steps: int, profile: bool) -> dict:
    began = time.perf_counter()
    import torch

    from skytrain.config import compose
    from skytrain.models import Kernels, build_model, flops_per_token, fused_loss
    from skytrain.training import make_optimizer

    path, switches = VARIANTS[name]
    torch.set_float32_matmul_precision("high")
    config = compose(["model=gpt2-124m"]).config
    model = build_model(config.model, seed=0).cuda()
    optimizer = make_optimizer(model, config.optimizer, fused=True)
    length = 1024
    accumulate = 524288 // 1024 // micro_batch
    tokens = torch.randint(0, 50257, (accumulate, micro_batch, length + 1), device="cuda")

    def autocast_loss(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cuda", torch.bfloat16):
            return model.loss(x, y)

    if path == "fused":
        kernels = Kernels(**switches)
        loss_of = lambda x, y: fused_loss(model, x, y, kernels)
    else:
        loss_of = torch.compile(autocast_loss, dynamic=False) if path == "compiled" else autocast_loss

    def step() -> torch.Tensor:
        for batch in tokens:
            loss = loss_of(batch[:, :-1], batch[:, 1:]) / accumulate
            loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        return loss * accumulate

    first_loss = float(step())
    torch.cuda.synchronize()
    first = time.perf_counter() - began
    for _ in range(2):
        step()
    times = []
    for _ in range(steps):
        torch.cuda.synchronize()
        start = time.perf_counter()
        last = step()
        torch.cuda.synchronize()
        times.append(time.perf_counter() - start)
    seconds = sorted(times)[len(times) // 2]
    result = {
        "name": name,
        "micro_batch": micro_batch,
        "tokens_per_s": 524288 / seconds,
        "micro_ms": seconds * 1e3 / accumulate,
        "mfu": 524288 / seconds * flops_per_token(model, length) / 989e12,
        "memory_gb": torch.cuda.max_memory_allocated() / 1e9,
        "first_step_s": first,
        "first_loss": first_loss,
        "last_loss": float(last),
    }
    if profile:
        from torch.profiler import ProfilerActivity, profile as profiler

        with profiler(activities=[ProfilerActivity.CUDA]) as trace:
            step()
            torch.cuda.synchronize()
        rows = sorted(
            (
                (event.key, event.self_device_time_total / 1e3 / accumulate, event.count)
                for event in trace.key_averages()
            ),
            key=lambda row: -row[1],
        )
        result["kernels"] = [(key[:90], round(ms, 3), count) for key, ms, count in rows[:45]]
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", help="one variant, in this process")
    parser.add_argument("--micro-batch", type=int, default=64)
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--profile", action="store_true")
    parser.add_argument("--variants", default=",".join(VARIANTS).replace(", ", "; "))
    parser.add_argument("--out", type=Path, default=Path())
    options = parser.parse_args()
    if options.only:
        print(
            "RESULT " + json.dumps(measure(options.only, options.micro_batch, options.steps, options.profile)),
            flush=True,
        )
        return
    results = []
    for name in [name.strip().replace("; ", ", ") for name in options.variants.split(",")]:
        command = [
            sys.executable,
            __file__,
            "--only",
            name,
            "--micro-batch",
            str(options.micro_batch),
            "--steps",
            str(options.steps),
        ]
        done = subprocess.run(command + ["--profile"] * options.profile, capture_output=True, text=True)
        line = next((line for line in done.stdout.splitlines() if line.startswith("RESULT ")), None)
        if line is None:
            print(f"{name}: FAILED\n{done.stderr[-2500:]}", flush=True)
            continue
        result = json.loads(line[7:])
        results.append(result)
        print(
            f"{name:26} {result['tokens_per_s']:>9,.0f} tok/s  {result['micro_ms']:7.2f} ms  MFU {result['mfu']:.1%}  {result['memory_gb']:.1f} GB  first step {result['first_step_s']:.1f} s  loss {result['first_loss']:.4f} -> {result['last_loss']:.4f}",
            flush=True,
        )
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / "single_gpu.json").write_text(json.dumps(results, indent=1))
    for result in results:
        for row in result.get("kernels", [])[:40]:
            print(f"   {row[1]:8.3f} ms x{row[2]:<4} {row[0]}")
        print()


if __name__ == "__main__":
    main()
