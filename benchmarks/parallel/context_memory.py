"""Memory of a rank when sequences grow with the ranks that share them: live storage at the peak of a step.

    python benchmarks/parallel/context_memory.py   # writes context_memory.log and the table of docs/parallelism.md

Four processes train a small decoder in float32. Under `fsdp` each has a sequence of its own; under `cp` all
four share one that is four times as long, so that each should need as much as before. Counted is every storage
that the second step made, from its first operation to the optimizer's, at the moment when most bytes were
alive: activations, and what both modes have alike (one block's gathered weights, gradients).
"""

from __future__ import annotations

import sys
import tempfile
import weakref
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))  # where this is run as a script

from benchmarks.parallel.document import insert
from benchmarks.parallel.processes import run_ranks

RANKS = 4
LENGTH = 512
SIZE = (
    "tokenizer=bytes",
    "model.layers=4",
    "model.width=64",
    "model.heads=4",
    f"model.max_length={RANKS * LENGTH}",
    "trainer.micro_batch=1",
    "trainer.steps=2",
    "trainer.validate_every=null",
    "trainer.device=cpu",
    "trainer.precision=32-true",
    "lr_schedule=constant",
    "lr_schedule.warmup_steps=0",
)
MODELS = {"gpt2": ("model=gpt2-tiny",), "llama": ("model=llama-tiny", "model.mlp_width=160")}
# What is compared, and its overrides; the first is what the others are measured by.
MODES = {
    "fsdp x4": ("parallel=fsdp", f"trainer.sequence_length={LENGTH}"),
    "cp x4 ring": ("parallel=cp", f"trainer.sequence_length={RANKS * LENGTH}", "parallel.context_method=ring"),
    "cp x4 allgather": (
        "parallel=cp",
        f"trainer.sequence_length={RANKS * LENGTH}",
        "parallel.context_method=allgather",
    ),
    "cp x4 ulysses": ("parallel=cp", f"trainer.sequence_length={RANKS * LENGTH}", "parallel.context_method=ulysses"),
    "fsdp x4, the long sequence on each": ("parallel=fsdp", f"trainer.sequence_length={RANKS * LENGTH}"),
}


def peak_bytes(overrides: tuple[str, ...]) -> int:
    """Of this rank, in the second step of a training on random tokens."""
    import lightning.pytorch as pl
    import torch
    from torch.utils._python_dispatch import TorchDispatchMode
    from torch.utils._pytree import tree_leaves
    from torch.utils.data import DataLoader

    from skytrain.config import compose
    from skytrain.jobs import Ranks
    from skytrain.storage import open_store
    from skytrain.training import CausalLM, make_trainer, outline, plan_training
    from skytrain.training.step import Optimization

    class Alive(TorchDispatchMode):
        """Bytes of the storages that operations made and that are still there. FSDP empties some and keeps them."""

        def __init__(self) -> None:
            super().__init__()
            self.storages: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()
            self.peak = 0

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            result = func(*args, **(kwargs or {}))
            for leaf in tree_leaves(result):
                if isinstance(leaf, torch.Tensor) and leaf.device.type == "cpu":
                    storage = getattr(leaf, "_local_tensor", leaf).untyped_storage()
                    self.storages[storage._cdata] = storage
            self.peak = max(self.peak, sum(storage.nbytes() for storage in self.storages.values()))
            return result

    class Watch(pl.Callback):
        alive: Alive | None = None

        def on_train_batch_start(self, trainer: Any, module: Any, batch: Any, index: int) -> None:
            if index == 1:
                self.alive = Alive()
                self.alive.__enter__()

        def on_before_optimizer_step(self, trainer: Any, module: Any, optimizer: Any) -> None:
            if self.alive is not None:
                self.alive.__exit__(None, None, None)

    ranks = Ranks.from_environment()
    length = next(int(word.split("=")[1]) for word in overrides if "sequence_length" in word)
    each_own = "parallel=fsdp" in overrides
    batch_tokens = f"trainer.batch_tokens={length * (ranks.world_size if each_own else 1)}"
    config = compose([*SIZE, *overrides, batch_tokens]).config
    plan = plan_training(config, ranks)
    watch = Watch()
    trainer = make_trainer(config, plan, open_store(tempfile.gettempdir()), [watch], [])
    made = torch.Generator().manual_seed(0)
    batches = [torch.randint(0, 250, (1, length + 1), generator=made) for _ in range(2)]
    module = CausalLM(outline(config), Optimization(config.optimizer, config.lr_schedule, 2, 1.0))
    trainer.fit(module, DataLoader(batches, batch_size=None))  # type: ignore[arg-type]
    assert watch.alive is not None
    return watch.alive.peak


def peaks(model: str, modes: dict[str, tuple[str, ...]]) -> dict[str, int]:
    """One process: by mode, its peak."""
    return {name: peak_bytes((*MODELS[model], *overrides)) for name, overrides in modes.items()}


def measure(model: str, modes: dict[str, tuple[str, ...]]) -> dict[str, int]:
    """Return, by mode, the peak of the rank that needs most."""
    seen = run_ranks(RANKS, peaks, model, modes)
    return {name: max(rank[name] for rank in seen) for name in modes}


def main() -> None:
    found = {model: measure(model, MODES) for model in MODELS}
    lines = [
        "| mode | tokens of a sequence | " + " | ".join(f"{model}, MB | of fsdp" for model in MODELS) + " |",
        "| --- " * (2 + 2 * len(MODELS)) + "|",
    ]
    base = next(iter(MODES))
    for name, overrides in MODES.items():
        length = next(word.split("=")[1] for word in overrides if "sequence_length" in word)
        cells = [f"{seen[name] / 1e6:.1f} | {seen[name] / seen[base]:.2f}" for seen in found.values()]
        lines.append(f"| {name} | {length} | " + " | ".join(cells) + " |")
    text = "\n".join(lines) + "\n"
    print(text)
    Path(__file__).with_suffix(".log").write_text(text)
    insert("context-memory", text)


if __name__ == "__main__":
    main()
