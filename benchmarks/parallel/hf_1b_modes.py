"""A 1B Llama on one GPU under FSDP, ZeRO-3 and ZeRO-3 with offload: step time, peak memory beside the planned one, losses.

    python benchmarks/parallel/hf_1b_modes.py --out benchmarks/parallel/hf_1b_modes_h200
    python benchmarks/parallel/hf_1b_modes.py --device cpu        # a trial of the script, with a tiny model

Writes OUT.log (the tables) and OUT.json (every step). Each mode runs in a process of its own, through the trainer
that `skytrain train` uses, on random tokens and with random weights from the same seed. `plain` keeps all activations;
`recipe` recomputes them and computes the loss in chunks, as the recipes for 8B models do. The peak is that of the steps
after the first one. At the end, Llama 3.1 8B on the meta device: its parameters, and the plan of its recipes.
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
    "single": "parallel=single",
    "fsdp": "parallel=fsdp",
    "deepspeed-zero3": "parallel=deepspeed-zero3",
    "deepspeed-zero3-offload": "parallel=deepspeed-zero3-offload",
}
MEMORY = {
    "plain": (),
    "recipe": ("trainer.activation_checkpointing=full", "trainer.loss_chunk_tokens=2048"),
}
SIZE = {
    "cuda": (
        "model=llama-3.2-1b",
        "trainer.sequence_length=2048",
        "trainer.micro_batch=4",
        "trainer.batch_tokens=16384",
    ),
    "cpu": (
        "model=llama-tiny",
        "model.vocab_size=257",
        "tokenizer=bytes",
        "trainer.sequence_length=64",
        "trainer.micro_batch=2",
        "trainer.batch_tokens=256",
    ),
}
WARMUP = 4
LIMIT_SECONDS = 420  # of one mode, with the compilation of DeepSpeed's operations
PARITY = 5e-2  # of a loss, between modes that round to bf16 at other places
GB = 1e9


def settings(mode: str, memory: str, device: str, steps: int) -> list[str]:
    return [
        *SIZE[device],
        MODES[mode],
        *MEMORY[memory],
        f"trainer.device={device}",
        "trainer.precision=bf16-mixed",
        "trainer.fused=off",
        f"trainer.steps={steps}",
        "trainer.validate_every=null",
        "optimizer.lr=1e-4",
        "lr_schedule=constant",
        "lr_schedule.warmup_steps=0",
    ]


def measure(mode: str, memory: str, device: str, steps: int) -> dict[str, Any]:
    """Trains here and returns what was seen."""
    import lightning.pytorch as pl
    import torch
    from torch.utils.data import DataLoader

    from skytrain.config import compose, uses_process_group
    from skytrain.jobs import Ranks
    from skytrain.storage import open_store
    from skytrain.training import make_module, make_trainer, outline, plan_training
    from skytrain.training.memory import grow_segments

    config = compose(settings(mode, memory, device, steps)).config
    plan = plan_training(config, Ranks())
    made = torch.Generator().manual_seed(0)
    batches = [
        torch.randint(0, 255, (plan.micro_batch, config.trainer.sequence_length + 1), generator=made)
        for _ in range(plan.micro_batches * steps)
    ]
    losses: list[float] = []
    ends: list[float] = []
    peaks = [0]
    cuda = device == "cuda"

    class Watch(pl.Callback):
        def on_train_batch_end(self, trainer: Any, module: Any, outputs: Any, batch: Any, index: int) -> None:
            if (index + 1) % plan.micro_batches:
                return
            losses.append(module.take_loss())  # which waits for the device
            ends.append(time.perf_counter())
            if cuda and len(ends) == 1:  # what building the model took is over
                peaks[0] = torch.cuda.max_memory_allocated()
                torch.cuda.reset_peak_memory_stats()

    def fit() -> None:
        trainer = make_trainer(config, plan, open_store(tempfile.gettempdir()), [Watch()], [])
        trainer.fit(
            make_module(config, plan, outline(config), lambda text: print(text, file=sys.stderr)),
            DataLoader(batches, batch_size=None),  # type: ignore[arg-type]
        )

    if cuda:
        torch.cuda.init()
        grow_segments()
    torch.manual_seed(0)
    if uses_process_group(config):
        with Ranks().joined(device):
            fit()
    else:
        fit()
    return {
        "step_ms": (ends[-1] - ends[WARMUP]) / (steps - 1 - WARMUP) * 1e3,
        "peak_bytes": torch.cuda.max_memory_allocated() if cuda else None,
        "reserved_bytes": torch.cuda.max_memory_reserved() if cuda else None,
        "first_step_peak_bytes": peaks[0] if cuda else None,
        "tokens_per_step": config.trainer.batch_tokens,
        "losses": losses,
    }


def planned_bytes(mode: str, memory: str, device: str, steps: int) -> float:
    """What the planner says that torch allocates on one GPU."""
    from dataclasses import replace

    from skytrain.config import compose
    from skytrain.planning import job_of
    from skytrain.planning.memory import rank_memory
    from skytrain.planning.mesh import requested_mesh

    config = compose(settings(mode, memory, device, steps)).config
    trainer = config.trainer
    micro_batches = trainer.batch_tokens // (trainer.micro_sequences * trainer.sequence_length)
    job = replace(job_of(config), accumulation=micro_batches)
    return rank_memory(job, requested_mesh(config.parallel, 1, 1)).allocated


def row(mode: str, memory: str, seen: dict[str, Any], base: dict[str, Any]) -> str:
    apart = max(abs(a - b) for a, b in zip(seen["losses"], base["losses"], strict=True))
    peak = seen["peak_bytes"]
    planned = seen["planned_bytes"]
    measured = (
        f"{peak / GB:.2f} | {planned / GB:.2f} | {planned / peak - 1:+.1%}" if peak else f"- | {planned / GB:.4f} | -"
    )
    speed = seen["tokens_per_step"] / seen["step_ms"] * 1e3
    parity = "yes" if apart <= PARITY else "NO"
    return f"| {mode} | {memory} | {seen['step_ms']:.1f} | {speed:,.0f} | {measured} | {apart:.1e} | {parity} |"


def on_meta(model: str) -> list[str]:
    """The parameters of a model that no device here could hold, counted on the meta device, and its recipes' plans."""
    from skytrain.config import compose
    from skytrain.models import outline_model
    from skytrain.planning import decoder_size

    config = compose([f"model={model}", "tokenizer=bytes"]).config
    built = outline_model(config.model, seed=0)
    counted = sum(parameter.numel() for parameter in built.parameters())
    computed = decoder_size(config.model).parameters
    return [f"{model} on the meta device: {counted:,} parameters; the planner has {computed:,}"]


def run_mode(mode: str, memory: str, device: str, steps: int) -> dict[str, Any]:
    """Measures in a process of its own; what went wrong is under `failure`."""
    command = [sys.executable, __file__, "--one", mode, memory, "--device", device, "--steps", str(steps)]
    began = time.monotonic()
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=LIMIT_SECONDS)
    except subprocess.TimeoutExpired:
        return {"failure": f"not done after {LIMIT_SECONDS} s"}
    if done.returncode:
        return {"failure": done.stderr[-4000:]}
    seen: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return seen | {
        "planned_bytes": planned_bytes(mode, memory, device, steps),
        "wall_seconds": time.monotonic() - began,
    }


def table(found: dict[str, Any]) -> list[str]:
    lines = [
        f"{found['machine']}; {' '.join(found['settings'])}",
        "",
        "| mode | memory | ms a step | tokens/s | peak, GB | planned, GB | planned against peak "
        "| loss, largest difference to single | parity |",
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for memory in MEMORY:
        for mode in MODES:
            seen = found["modes"].get(f"{mode}, {memory}")
            if seen is not None and "failure" in seen:
                lines.append(f"| {mode} | {memory} | failed | | | | | | |")
            elif seen is not None:
                base = found["modes"].get(f"single, {memory}", seen)
                lines.append(row(mode, memory, seen, seen if "failure" in base else base))
    return lines


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    options.add_argument("--out", type=Path, help="writes OUT.log and OUT.json; keeps rows of an earlier call there")
    options.add_argument("--modes", nargs="*", default=list(MODES), choices=list(MODES))
    options.add_argument("--memory", nargs="*", default=list(MEMORY), choices=list(MEMORY))
    options.add_argument("--steps", type=int, default=12)
    options.add_argument("--one", nargs=2, help="measures one MODE and MEMORY and prints it as JSON")
    given = options.parse_args()
    if given.one:
        print(json.dumps(measure(*given.one, given.device, given.steps)))
        return
    import torch

    if given.device == "cuda" and not torch.cuda.is_available():
        sys.exit("no GPU here: nothing to measure; --device cpu tries the script")
    name = torch.cuda.get_device_name() if given.device == "cuda" else "cpu"
    log, record = (given.out.with_suffix(ending) if given.out else None for ending in (".log", ".json"))
    machine = f"{name}, torch {torch.__version__}, Python {sys.version.split()[0]}"
    found: dict[str, Any] = {"machine": machine, "settings": SIZE[given.device], "modes": {}}
    if record is not None and record.exists():
        found["modes"] = json.loads(record.read_text())["modes"]
    meta = on_meta("llama-3.1-8b")
    for memory in given.memory:
        for mode in given.modes:
            seen = run_mode(mode, memory, given.device, given.steps)
            found["modes"][f"{mode}, {memory}"] = seen
            print(f"{mode}, {memory}: {seen.get('failure') or 'measured'}", file=sys.stderr, flush=True)
            text = "\n".join([*table(found), "", *meta]) + "\n"
            if log is not None and record is not None:
                log.write_text(text)
                record.write_text(json.dumps(found, indent=1) + "\n")
    print(text)


if __name__ == "__main__":
    main()
