"""Every preset at world size 1 on one GPU, with NCCL, compile and bf16, against the single-device path.

    python benchmarks/parallel/h200.py [--out FOLDER] [--minutes 8] [--variants] [--rows fused]

Needs the project's `train` dependencies and its `src` on PYTHONPATH; no network. Trains GPT-2 124M through
Lightning's trainer on random tokens, 512 sequences of 1024 a step. Writes FOLDER/h200.json and FOLDER/h200.log;
what does not fit into the minutes is left out and named. `--rows` takes only presets with that word in their
name, `--variants` adds recomputing, reducing each micro-batch and keeping state on the CPU. `--device cpu` runs
a tiny model, to try the script itself; without a GPU and without that option nothing is measured.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
import traceback
from pathlib import Path
from typing import Any

import torch

COMPILED = "single, compiled"
FUSED = "single, fused kernels"
MESHES = {
    "ddp": ("parallel=ddp",),
    "fsdp": ("parallel=fsdp",),
    "hsdp": ("parallel=hsdp", "parallel.replicate=1"),
    "tp": ("parallel=tp",),
    "tp-fsdp": ("parallel=tp-fsdp", "parallel.tensor=1"),
    "pp": ("parallel=pp",),
    "pp-fsdp": ("parallel=pp-fsdp", "parallel.pipeline=1"),
    "pp-tp-fsdp": ("parallel=pp-tp-fsdp", "parallel.pipeline=1", "parallel.tensor=1"),
    "cp": ("parallel=cp",),
}
PRESETS = {
    COMPILED: ("parallel=single", "trainer.fused=off"),
    **{name: (*overrides, "trainer.fused=off") for name, overrides in MESHES.items()},
    f"{COMPILED}, again": ("parallel=single", "trainer.fused=off"),
    FUSED: ("parallel=single",),
    **{f"{name}, fused kernels": MESHES[name] for name in ("ddp", "fsdp", "hsdp")},
    f"{FUSED}, again": ("parallel=single",),
}
VARIANTS = {
    "fsdp, activations recomputed": ("parallel=fsdp", "trainer.fused=off", "trainer.activation_checkpointing=full"),
    "fsdp, reduced each micro-batch": ("parallel=fsdp", "trainer.fused=off", "parallel.reduce_once=false"),
    "fsdp, state on the CPU": ("parallel=fsdp", "trainer.fused=off", "parallel.cpu_offload=true"),
}
# steps
WARM = 3
TIMED = 5
REAL = ("model=gpt2-124m", "trainer.micro_batch=64", "trainer.batch_tokens=524288", "trainer.compile=true")
TRIAL = (
    "model=gpt2-tiny",
    "tokenizer=bytes",
    "trainer.sequence_length=64",
    "trainer.micro_batch=2",
    "trainer.batch_tokens=512",
)


def measure(overrides: tuple[str, ...], device: str) -> dict[str, Any]:
    """Trains a few steps and tells what a step took."""
    import lightning.pytorch as pl

    from skytrain.config import compose
    from skytrain.storage import open_store
    from skytrain.training import make_module, make_trainer, outline, plan_training

    shape = REAL if device == "cuda" else TRIAL
    steps = WARM + TIMED
    common = (
        f"trainer.device={device}",
        "trainer.precision=bf16-mixed",
        "trainer.deterministic=false",
        "trainer.validate_every=null",
        f"trainer.steps={steps}",
        "lr_schedule.warmup_steps=2",
    )
    config = compose([*shape, *common, *overrides]).config
    plan = plan_training(config)
    ends: list[float] = []
    losses: list[float] = []

    class Clock(pl.Callback):
        def on_train_batch_end(self, trainer: Any, module: Any, outputs: Any, batch: Any, index: int) -> None:
            if (index + 1) % plan.micro_batches == 0:
                losses.append(module.take_loss())  # waits for the device
                ends.append(time.perf_counter())

    made = torch.Generator().manual_seed(0)
    length = config.trainer.sequence_length
    vocabulary = config.model.vocab_size
    few = [torch.randint(0, vocabulary, (plan.micro_batch, length + 1), generator=made) for _ in range(4)]
    few = [batch.to(device) for batch in few]
    batches = [few[i % len(few)] for i in range(plan.micro_batches * steps)]
    told: list[str] = []
    module = make_module(config, plan, outline(config), told.append)
    # Each preset compiles anew: past a few variants of one function torch would give up and run it uncompiled.
    torch._dynamo.reset()
    if device == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    trainer = make_trainer(config, plan, open_store(tempfile.gettempdir()), [Clock()], [])
    trainer.fit(module, torch.utils.data.DataLoader(batches, batch_size=None))  # type: ignore[arg-type]
    seconds = [b - a for a, b in zip(ends[WARM - 1 :], ends[WARM:], strict=False)]
    middle = statistics.median(seconds)
    return {
        "step_ms": middle * 1e3,
        "tokens_per_s": config.trainer.batch_tokens / middle,
        "peak_gib": torch.cuda.max_memory_allocated() / 2**30 if device == "cuda" else 0.0,
        "loss": losses[-1],
        "path": " | ".join(told),
    }


def main() -> None:
    options = argparse.ArgumentParser()
    options.add_argument("--out", type=Path, default=Path(__file__).parent)
    options.add_argument("--minutes", type=float, default=8.0)
    options.add_argument("--variants", action="store_true")
    options.add_argument("--rows", default="")
    options.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    given = options.parse_args()
    if given.device == "cuda" and not torch.cuda.is_available():
        print("no GPU here: nothing is measured")
        return
    from skytrain.jobs import Ranks

    ends_at = time.monotonic() + 60 * given.minutes
    found: dict[str, Any] = {}
    lines = [f"torch {torch.__version__}, {torch.cuda.get_device_name() if given.device == 'cuda' else 'cpu'}", ""]
    lines += [
        "| preset | step ms | tokens/s | of its single | peak GiB | loss after 8 steps |",
        "| --- " * 6 + "|",
    ]
    with Ranks().joined(given.device):
        for name, overrides in {**PRESETS, **(VARIANTS if given.variants else {})}.items():
            if given.rows not in name or (given.device == "cpu" and "on the CPU" in name):
                continue
            if time.monotonic() > ends_at:
                lines.append(f"| {name} | left out: no time | | | | |")
                continue
            try:
                seen = found[name] = measure(overrides, given.device)
            except Exception:  # one preset that fails must not cost the others their measurement; the log names it
                found[name] = {"failed": traceback.format_exc()}
                lines.append(f"| {name} | failed: {traceback.format_exc().splitlines()[-1][:160]} | | | | |")
                print(traceback.format_exc(), flush=True)
                continue
            base = found[FUSED if "fused" in name else COMPILED].get("tokens_per_s")
            ratio = f"{seen['tokens_per_s'] / base:.3f}" if base else ""
            lines.append(
                f"| {name} | {seen['step_ms']:.1f} | {seen['tokens_per_s']:,.0f} | {ratio} | {seen['peak_gib']:.1f} | {seen['loss']:.4f} |"
            )
            print(lines[-1], flush=True)
    given.out.mkdir(parents=True, exist_ok=True)
    (given.out / "h200.json").write_text(json.dumps(found, indent=2))
    (given.out / "h200.log").write_text("\n".join(lines) + "\n")
    print("\n".join(lines))


if __name__ == "__main__":
    main()
