"""DeepSpeed presets on one GPU against the same training without: step time, peak memory, losses.

    python benchmarks/parallel/deepspeed_gpu.py --out benchmarks/parallel/deepspeed_gpu.log
    python benchmarks/parallel/deepspeed_gpu.py --device cpu        # a trial of the script, with a tiny model

Each mode in a process of its own, since DeepSpeed keeps what it made until its process ends. On one GPU there
is nothing to divide; what shows is what the engine costs, what offloading saves and costs, and that all of them
train the same.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))  # where this is run as a script

MODES = {
    "single": ("parallel=single", "trainer.fused=off"),
    "fsdp": ("parallel=fsdp", "trainer.fused=off"),
    "deepspeed-zero1": ("parallel=deepspeed-zero1",),
    "deepspeed-zero2": ("parallel=deepspeed-zero2",),
    "deepspeed-zero3": ("parallel=deepspeed-zero3",),
    "deepspeed-zero3-offload": ("parallel=deepspeed-zero3-offload",),
}
SIZE = {
    "cuda": ("model=gpt2-124m", "trainer.sequence_length=1024", "trainer.micro_batch=16", "trainer.batch_tokens=32768"),
    "cpu": (
        "model=gpt2-tiny",
        "model.max_length=32",
        "trainer.sequence_length=32",
        "trainer.micro_batch=2",
        "trainer.batch_tokens=128",
    ),
}
STEPS = 20
WARMUP = 5


def measure(mode: str, device: str) -> dict[str, Any]:
    import lightning.pytorch as pl
    import torch
    from torch.utils.data import DataLoader

    from skytrain.config import compose, uses_process_group
    from skytrain.jobs import Ranks
    from skytrain.storage import open_store
    from skytrain.training import CausalLM, make_trainer, outline, plan_training
    from skytrain.training.step import Optimization

    config = compose(
        [
            *SIZE[device],
            *MODES[mode],
            f"trainer.device={device}",
            "trainer.precision=bf16-mixed",
            f"trainer.steps={STEPS}",
            "trainer.validate_every=null",
            "lr_schedule=constant",
            "lr_schedule.warmup_steps=0",
        ]
    ).config
    plan = plan_training(config, Ranks())
    made = torch.Generator().manual_seed(0)
    batches = [
        torch.randint(0, 255, (plan.micro_batch, config.trainer.sequence_length + 1), generator=made)
        for _ in range(plan.micro_batches * STEPS)
    ]
    losses: list[float] = []
    ends: list[float] = []

    class Watch(pl.Callback):
        def on_train_batch_end(self, trainer: Any, module: Any, outputs: Any, batch: Any, index: int) -> None:
            if (index + 1) % plan.micro_batches == 0:
                losses.append(module.take_loss())  # which waits for the device
                ends.append(time.perf_counter())

    def fit() -> None:
        trainer = make_trainer(config, plan, open_store(tempfile.gettempdir()), [Watch()], [])
        module = CausalLM(outline(config), Optimization(config.optimizer, config.lr_schedule, STEPS, 1.0))
        trainer.fit(module, DataLoader(batches, batch_size=None))  # type: ignore[arg-type]

    torch.manual_seed(0)
    if uses_process_group(config):
        with Ranks().joined(device):
            fit()
    else:
        fit()
    peak = torch.cuda.max_memory_allocated() if device == "cuda" else 0
    return {"step_ms": (ends[-1] - ends[WARMUP]) / (STEPS - 1 - WARMUP) * 1e3, "peak_bytes": peak, "losses": losses}


def main() -> None:
    options = argparse.ArgumentParser()
    options.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    options.add_argument("--out", type=Path)
    options.add_argument("--modes", nargs="*", default=list(MODES))
    options.add_argument("--one", help="measure one mode and print it as JSON; what each process is started with")
    given = options.parse_args()
    if given.one:
        print(json.dumps(measure(given.one, given.device)))
        return
    import torch

    if given.device == "cuda" and not torch.cuda.is_available():
        print("no GPU here: nothing to measure; --device cpu tries the script")
        return
    lines = [
        "| mode | ms a step | of single | peak, GB | loss, largest difference to single |",
        "| --- | --- | --- | --- | --- |",
    ]
    found: dict[str, Any] = {}
    for mode in given.modes:
        command = [sys.executable, __file__, "--one", mode, "--device", given.device]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            print(f"{mode}: {done.stderr[-3000:]}", file=sys.stderr)
            lines.append(f"| {mode} | failed | | | |")
            continue
        found[mode] = seen = json.loads(done.stdout.strip().splitlines()[-1])
        base = found.get("single", seen)
        apart = max(abs(a - b) for a, b in zip(seen["losses"], base["losses"], strict=True))
        lines.append(
            f"| {mode} | {seen['step_ms']:.1f} | {seen['step_ms'] / base['step_ms']:.2f} | {seen['peak_bytes'] / 1e9:.2f} | {apart:.1e} |"
        )
    text = "\n".join(lines) + "\n"
    print(text)
    if given.out:
        given.out.write_text(text)


if __name__ == "__main__":
    main()
