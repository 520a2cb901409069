"""Memory of a rank under each DeepSpeed preset: live storage at the peak of a step, against what ZeRO promises.

    python benchmarks/parallel/deepspeed_memory.py   # writes deepspeed_memory.log and the table of docs/parallelism.md

A decoder in float32 with hardly any activations (one sequence of eight tokens) trains three steps of two
micro-batches on two and on four ranks. Looked at in the third, when the optimizer has its state: after each
block's forward pass, and between the backward pass and the update. Counted is every storage that a tensor
holds, once.

P and G are parameters and gradients, 4 bytes each; O is 12 bytes a parameter: two moments, and the float32
weights that DeepSpeed's optimizers keep of their own, whatever the model's are.
"""

from __future__ import annotations

import gc
import sys
import tempfile
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))  # where this is run as a script

from benchmarks.parallel.document import insert
from benchmarks.parallel.processes import run_ranks

PRESETS = ("deepspeed-zero1", "deepspeed-zero2", "deepspeed-zero3")
TOLERANCE = 0.15
SIZE = (
    "model=gpt2-tiny",
    "tokenizer=bytes",
    "model.layers=8",
    "model.width=128",
    "model.heads=4",
    "model.max_length=8",
    "trainer.sequence_length=8",
    "trainer.micro_batch=1",
    "trainer.steps=3",
    "trainer.validate_every=null",
    "trainer.device=cpu",
    "trainer.precision=32-true",
    "lr_schedule=constant",
    "lr_schedule.warmup_steps=0",
)


def measure(preset: str) -> dict[str, int]:
    """Bytes that this rank holds at each moment's fullest in the last step, of all that was made for the training."""
    import lightning.pytorch as pl
    import torch
    from torch.utils._python_dispatch import TorchDispatchMode
    from torch.utils._pytree import tree_leaves
    from torch.utils.data import DataLoader

    from skytrain.config import compose
    from skytrain.jobs import Ranks
    from skytrain.parallel import blocks_of
    from skytrain.storage import open_store
    from skytrain.training import CausalLM, make_trainer, outline, plan_training
    from skytrain.training.step import Optimization

    class Alive(TorchDispatchMode):
        """The storages that operations made and that are still there."""

        def __init__(self) -> None:
            super().__init__()
            self.storages: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            result = func(*args, **(kwargs or {}))
            for leaf in tree_leaves(result):
                if isinstance(leaf, torch.Tensor) and leaf.device.type == "cpu":
                    storage = leaf.untyped_storage()
                    self.storages[storage._cdata] = storage
            return result

    ranks = Ranks.from_environment()
    config = compose([*SIZE, f"parallel={preset}", f"trainer.batch_tokens={2 * 8 * ranks.world_size}"]).config
    plan = plan_training(config, ranks)
    alive = Alive()
    seen = {"forward": 0, "update": 0}

    def look(moment: str) -> None:
        gc.collect()
        seen[moment] = max(seen[moment], sum(storage.nbytes() for storage in alive.storages.values()))

    class Watch(pl.Callback):
        def __init__(self) -> None:
            self.hooks: list[Any] = []

        def on_train_batch_start(self, trainer: Any, module: Any, *_: Any) -> None:
            if trainer.global_step == plan.total_steps - 1 and not self.hooks:
                for block in blocks_of(module.model):
                    self.hooks.append(block.register_forward_hook(lambda *_: look("forward")))

        def on_before_optimizer_step(self, trainer: Any, module: Any, optimizer: Any) -> None:
            if trainer.global_step == plan.total_steps - 1:
                look("update")

    made = torch.Generator().manual_seed(0)
    batches = [torch.randint(0, 250, (1, 9), generator=made) for _ in range(plan.micro_batches * plan.total_steps)]
    trainer = make_trainer(config, plan, open_store(tempfile.gettempdir()), [Watch()], [])
    module = CausalLM(outline(config), Optimization(config.optimizer, config.lr_schedule, 3, 1.0))
    with alive:
        trainer.fit(module, DataLoader(batches, batch_size=None))  # type: ignore[arg-type]
    return seen


def sizes() -> dict[str, int]:
    """Of the model, in elements: all of it, and one block."""
    from skytrain.config import compose
    from skytrain.models import build_model

    model: Any = build_model(compose(list(SIZE)).config.model, seed=0)
    return {
        "all": sum(parameter.numel() for parameter in model.parameters()),
        "block": sum(parameter.numel() for parameter in model.blocks["0"].parameters()),
    }


def expected(preset: str, ranks: int, elements: dict[str, int]) -> float:
    """Bytes: what ZeRO promises, with one gathered layer for ZeRO-3."""
    parameters, gradients, optimizer = (bytes_each * elements["all"] for bytes_each in (4, 4, 12))
    return {
        "deepspeed-zero1": parameters + gradients + optimizer / ranks,
        "deepspeed-zero2": parameters + (gradients + optimizer) / ranks,
        "deepspeed-zero3": (parameters + gradients + optimizer) / ranks + 4 * elements["block"],
    }[preset]


def measure_all(presets: tuple[str, ...]) -> dict[str, dict[str, int]]:
    return {preset: measure(preset) for preset in presets}


def rows() -> Iterator[str]:
    elements = sizes()
    yield "| preset | ranks | promised, MB | forward, MB | before the update, MB | fullest / promised |"
    yield "| --- | --- | --- | --- | --- | --- |"
    for ranks in (2, 4):
        everyone = run_ranks(ranks, measure_all, PRESETS)
        for preset in PRESETS:
            promised = expected(preset, ranks, elements)
            forward, update = (max(rank[preset][moment] for rank in everyone) for moment in ("forward", "update"))
            yield (
                f"| {preset} | {ranks} | {promised / 1e6:.2f} | {forward / 1e6:.2f} | {update / 1e6:.2f} "
                f"| {max(forward, update) / promised:.3f} |"
            )


def main() -> None:
    text = "\n".join(rows()) + "\n"
    print(text)
    Path(__file__).with_suffix(".log").write_text(text)
    insert("deepspeed-memory", text)


if __name__ == "__main__":
    main()
