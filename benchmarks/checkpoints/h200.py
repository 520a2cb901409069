"""Cost of a GPT-2 124M checkpoint with its optimizer: how long training pauses, and MB/s against torch and plain DCP.

python benchmarks/checkpoints/h200.py --out benchmarks/checkpoints/h200.json       # on a GPU, about a minute
python benchmarks/checkpoints/h200.py --device cpu                                # a trial with a tiny model
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import statistics
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import torch
import torch.distributed.checkpoint as torch_dcp

from skytrain.checkpoints import Keep, SaveOptions, open_checkpoint, split_checkpoint
from skytrain.checkpoints.saving import Saver, TrainingState
from skytrain.config import Config, Interval, compose
from skytrain.jobs import Ranks
from skytrain.parallel import dump_checkpoint
from skytrain.storage import open_store
from skytrain.training import CausalLM, make_module, make_trainer, outline, plan_training
from skytrain.training.checkpointing import Checkpoints, SavePolicy
from skytrain.training.random_state import RandomState

SETTINGS = {
    "cuda": (
        "model=gpt2-124m",
        "trainer.sequence_length=1024",
        "trainer.micro_batch=32",
        "trainer.batch_tokens=131072",
    ),
    "cpu": ("model=gpt2-tiny", "trainer.sequence_length=64", "trainer.micro_batch=4", "trainer.batch_tokens=512"),
}
PRECISION = {"cuda": "bf16-mixed", "cpu": "32-true"}
REPEATS = 3


class StepTimes(pl.Callback):
    """When each optimizer step had really ended on the device, and what state there was at the end."""

    def __init__(self) -> None:
        self.ends: list[float] = []
        self.state: dict[str, torch.Tensor] = {}

    def on_train_batch_end(self, trainer: Any, module: Any, *_: Any) -> None:
        if trainer.global_step == len(self.ends) + 1:
            if module.device.type == "cuda":
                torch.cuda.synchronize()
            self.ends.append(time.perf_counter())

    def on_train_end(self, trainer: Any, module: Any) -> None:
        checkpoint = dump_checkpoint(trainer)
        self.state = dict(split_checkpoint(checkpoint).tensors)


class Stopwatch(Checkpoints):
    """Notes for each save at which step it began and how long it took until it was committed."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.saves: list[dict[str, float]] = []

    def _begin(self, trainer: Any, step: int) -> None:
        if torch.cuda.is_available():
            torch.cuda.synchronize()  # the step that is still being computed is no part of the save
        began = time.perf_counter()
        super()._begin(trainer, step)
        self.saves.append({"step": step, "call_seconds": time.perf_counter() - began})

    def _succeeded(self, step: int, seconds: float) -> None:
        super()._succeeded(step, seconds)
        for save in self.saves:
            if save["step"] == step:
                save["commit_seconds"] = seconds


def train(config: Config, folder: Path, steps: int, every: int) -> tuple[dict[str, Any], dict[str, torch.Tensor]]:
    """Trains with a save every so many steps. The stall is the time of the steps around a save beyond the median."""
    plan = plan_training(config, Ranks())
    store = open_store(str(folder))
    times = StepTimes()
    saves = Stopwatch(store, "bench", Ranks(), SavePolicy(every=Interval(steps=every), keep=Keep()), print)
    trainer = make_trainer(config, plan, store, [saves, RandomState(Ranks()), times], [])
    module: CausalLM = make_module(config, plan, outline(config), print)
    length = config.trainer.sequence_length
    batch = torch.randint(0, config.model.vocab_size, (plan.micro_batch, length + 1))
    batches = [batch] * (plan.micro_batches * steps)
    trainer.fit(module, torch.utils.data.DataLoader(batches, batch_size=None))  # type: ignore[arg-type]
    seconds = [later - earlier for earlier, later in zip(times.ends, times.ends[1:], strict=False)]
    usual = statistics.median(seconds)
    stalls = []
    for save in saves.saves:
        step = int(save["step"])
        # The save is part of its own step's time. The last step is left out: it waits for a save of its own.
        around = seconds[step - 2 : min(step - 2 + every, steps - 2)]
        stalls.append({**save, "extra_seconds": sum(around) - usual * len(around), "slowest_step": max(around)})
    found = {"median_step_seconds": usual, "saves": stalls, "longest_call_seconds": saves.stall_seconds}
    return found, times.state


def timed(work: Callable[[], Any], device: str) -> float:
    if device == "cuda":
        torch.cuda.synchronize()
    began = time.perf_counter()
    work()
    if device == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - began


def sync_files(folder: Path) -> None:
    """The others leave their bytes to the system; ours are on the disk when a save returns."""
    for path in folder.rglob("*"):
        if path.is_file():
            with path.open("rb") as file:
                os.fsync(file.fileno())


Way = tuple[Callable[[], Any], Callable[[], Any]]


def ways(state: dict[str, torch.Tensor], targets: dict[str, torch.Tensor], folder: Path, device: str) -> dict[str, Way]:
    """Return, by name, how to save the state below `folder`, and how to load it from there."""
    store = open_store(str(folder))
    file = folder / "torch.pt"
    plain = folder / "dcp"
    empty = split_checkpoint({"state_dict": {}, "optimizer_states": []})
    whole = TrainingState(state, empty.rest, empty.share)
    saver = Saver(store)
    saver.reserve(state)

    def load_torch() -> None:
        loaded = torch.load(file, weights_only=True, map_location=device)
        for name, target in targets.items():
            target.copy_(loaded[name])

    return {
        "skytrain": (
            lambda: saver.save("ours/here", whole, SaveOptions()),
            lambda: open_checkpoint(store, "ours/here").tensors.read_into(targets.items()),
        ),
        "torch.save": (lambda: (torch.save(state, file), sync_files(folder)), load_torch),
        "plain DCP": (
            lambda: (torch_dcp.save(dict(state), checkpoint_id=plain), sync_files(folder)),
            lambda: torch_dcp.load(dict(targets), checkpoint_id=plain),
        ),
    }


def compare(state: dict[str, torch.Tensor], folder: Path, device: str) -> dict[str, dict[str, list[float]]]:
    """Seconds to save and to load by each way, in turn, so that none has the quiet moments to itself."""
    targets = {name: torch.empty_like(tensor) for name, tensor in state.items()}
    known = ways(state, targets, folder, device)
    found: dict[str, dict[str, list[float]]] = {name: {"save": [], "load": []} for name in known}
    for _ in range(REPEATS):
        for name, (save, load) in known.items():
            found[name]["save"].append(timed(save, device))
            for target in targets.values():
                target.zero_()
            found[name]["load"].append(timed(load, device))
            assert all(torch.equal(targets[key], tensor) for key, tensor in state.items()), name
            for path in folder.iterdir():
                shutil.rmtree(path) if path.is_dir() else path.unlink()
    return found


def main() -> None:
    warnings.filterwarnings("ignore")
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", choices=list(SETTINGS), default="cuda")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--folder", type=Path, help="on the disk to measure; the system's temporary one otherwise")
    arguments = parser.parse_args()
    device = arguments.device
    steps = 60
    every = 15
    overrides = (
        *SETTINGS[device],
        f"trainer.steps={steps}",
        "trainer.validate_every=null",
        f"trainer.device={device}",
        f"trainer.precision={PRECISION[device]}",
        "lr_schedule.warmup_steps=1",
        "trainer.on_anomaly=ignore",
    )
    if device == "cpu":
        overrides = (*overrides, "tokenizer=bytes")
    config = compose(list(overrides)).config
    with tempfile.TemporaryDirectory(prefix="skytrain-bench-", dir=arguments.folder) as scratch:
        training, state = train(config, Path(scratch) / "run", steps, every)
        shutil.rmtree(Path(scratch) / "run")
        size = sum(tensor.numel() * tensor.element_size() for tensor in state.values())
        seconds = compare(state, Path(scratch), device)
    print(
        f"{torch.cuda.get_device_name() if device == 'cuda' else platform.processor() or 'cpu'}, torch {torch.__version__}"
    )
    print(f"{size / 1e6:.0f} MB of state; a step takes {training['median_step_seconds'] * 1e3:.1f} ms")
    for save in training["saves"]:
        print(
            f"save at step {save['step']:.0f}: training stood still {save['call_seconds'] * 1e3:.0f} ms; all in all it cost"
            f" {save['extra_seconds'] * 1e3:.0f} ms; committed after {save.get('commit_seconds', float('nan')):.2f} s"
        )
    print(f"{'':12}{'save MB/s':>12}{'load MB/s':>12}   (median of {REPEATS}, and the range)")
    for way, times in seconds.items():
        rates = {what: sorted(size / 1e6 / value for value in values) for what, values in times.items()}
        ranges = "  ".join(f"{what} {values[0]:.0f}-{values[-1]:.0f}" for what, values in rates.items())
        middle = {what: statistics.median(values) for what, values in rates.items()}
        print(f"{way:12}{middle['save']:12.0f}{middle['load']:12.0f}   {ranges}")
    if arguments.out:
        result = {"device": device, "bytes": size, "training": training, "seconds": seconds}
        arguments.out.write_text(json.dumps({**result, "torch": torch.__version__}, indent=1))


if __name__ == "__main__":
    main()
