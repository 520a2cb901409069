"""What the processes of a test do. Each process imports this anew, so it is apart from the tests."""

from __future__ import annotations

import gc
import tempfile
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.data import DataLoader

from skytrain.config import compose
from skytrain.jobs import Ranks
from skytrain.models import build_model
from skytrain.pipelines.train import train
from skytrain.runs import Silent, read_metrics
from skytrain.storage import open_store
from skytrain.training import CausalLM, make_trainer, outline, plan_training
from skytrain.training.step import Optimization
from tests.support.tiny import tiny_config

SMALL = (
    "model=gpt2-tiny",
    "tokenizer=bytes",
    "model.max_length=32",
    "trainer.sequence_length=32",
    "trainer.batch_tokens=256",
    "trainer.steps=2",
    "trainer.validate_every=null",
    "trainer.device=cpu",
    "trainer.precision=32-true",
    "lr_schedule=constant",
    "lr_schedule.warmup_steps=0",
)


class Watch(pl.Callback):
    """Looks at a module when it is ready to train, and after each optimizer step, while gradients are still there."""

    def __init__(self, *, ready: Any = None, stepped: Any = None) -> None:
        self.ready, self.stepped = ready, stepped

    def on_fit_start(self, trainer: Any, module: Any) -> None:
        if self.ready:
            self.ready(module)

    def on_train_batch_end(self, trainer: Any, module: Any, *_: Any) -> None:
        if self.stepped:
            self.stepped(module)


def fit(overrides: tuple[str, ...], watch: Watch) -> CausalLM:
    """Trains on random tokens, without a store."""
    config = compose([*SMALL, *overrides]).config
    plan = plan_training(config, Ranks.from_environment())
    trainer = make_trainer(config, plan, open_store(tempfile.gettempdir()), [watch], [])
    made = torch.Generator().manual_seed(0)
    batches = [
        torch.randint(0, 250, (plan.micro_batch, 33), generator=made)
        for _ in range(plan.micro_batches * plan.total_steps)
    ]
    module = CausalLM(outline(config), Optimization(config.optimizer, config.lr_schedule, 2, 1.0))
    trainer.fit(module, DataLoader(batches, batch_size=None))  # type: ignore[arg-type]
    return module


def whole(value: torch.Tensor) -> torch.Tensor:
    return value.full_tensor() if isinstance(value, DTensor) else value


def initial_differences(meshes: list[tuple[str, ...]], *given: str) -> dict[str, float]:
    """By mesh, the largest difference between a parameter on it and in the model that one process builds."""
    config = compose([*SMALL, *given]).config
    expected = dict(build_model(config.model, seed=config.seed).named_parameters(remove_duplicate=False))
    found: dict[str, float] = {}
    for overrides in meshes:

        def ready(module: Any, key: str = overrides[0]) -> None:
            found[key] = max(
                float((whole(value) - expected[name]).abs().max().detach())
                for name, value in module.model.named_parameters()
            )

        fit((*overrides, *given), Watch(ready=ready))
    return found


def live_bytes() -> int:
    """Of all tensors that this process holds, each storage once."""
    gc.collect()
    storages = {}
    gc.unfreeze()  # what training has set aside from collection is live too
    for thing in gc.get_objects():
        if isinstance(thing, torch.Tensor) and thing.device.type == "cpu":
            local = thing.to_local() if isinstance(thing, DTensor) else thing
            storage = local.untyped_storage()
            storages[storage.data_ptr()] = storage.nbytes()
    return sum(storages.values())


def memory(overrides: tuple[str, ...]) -> dict[str, int]:
    """Bytes held before anything was made, with the model ready, and after the second step."""
    found = {"before": live_bytes()}
    seen: list[int] = []
    fit(
        overrides,
        Watch(ready=lambda module: found.update(ready=live_bytes()), stepped=lambda module: seen.append(live_bytes())),
    )
    return {**found, "second_step": seen[-1]}


class SentBytes(TorchDispatchMode):
    """Counts what is handed to collectives, by their name."""

    def __init__(self) -> None:
        super().__init__()
        self.sent: dict[str, int] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.namespace == "c10d":
            name = func._schema.name.removeprefix("c10d::")
            # Inputs are the second argument where there is an output first, else the only one.
            given = args[1] if name in ("_reduce_scatter_base_", "_allgather_base_") else args[0]
            tensors = given if isinstance(given, (list, tuple)) else [given]
            size = sum(t.numel() * t.element_size() for t in tensors if isinstance(t, torch.Tensor))
            self.sent[name] = self.sent.get(name, 0) + size
        return func(*args, **(kwargs or {}))


def bytes_sent(cases: dict[str, tuple[str, ...]]) -> dict[str, dict[str, int]]:
    """By case, what one training of two steps hands to each kind of collective."""
    found = {}
    for name, overrides in cases.items():
        with SentBytes() as counter:
            fit(overrides, Watch())
        found[name] = dict(counter.sent)
    return found


def hugging_face_losses(folder: Path, meshes: list[tuple[str, ...]]) -> list[list[float]]:
    """By mesh, the losses of a tiny Llama that transformers builds."""
    model = ("model=hf", f"model.name={folder}", "model.max_length=32", "trainer.steps=3")
    found = []
    for overrides in meshes:
        losses: list[float] = []
        fit((*model, *overrides), Watch(stepped=lambda module, seen=losses: seen.append(float(module._losses[-1]))))
        found.append(losses)
    return found


def tied_weights(meshes: list[tuple[str, ...]]) -> list[dict[str, torch.Tensor]]:
    """After training, the two copies of the tied weight, as far as this rank has them."""
    found = []
    for overrides in meshes:
        named = dict(fit(overrides, Watch()).model.named_parameters())
        names = ("embedding.tokens.weight", "head.projection.weight")
        found.append({name: whole(named[name]).detach() for name in names if name in named})
    return found


def replicated_after_dropout() -> dict[str, bool]:
    """Under tensor parallelism with dropout: whether weights that every rank has whole are still the same everywhere."""
    named = dict(fit(("parallel=tp", "model.dropout=0.2", "trainer.micro_batch=4"), Watch()).model.named_parameters())
    found = {}
    for name in ("embedding.positions.weight", "blocks.0.attention_norm.weight", "blocks.3.mlp.down.bias"):
        mine = whole(named[name]).detach().contiguous()
        others = [torch.empty_like(mine) for _ in range(dist.get_world_size())]
        dist.all_gather(others, mine)
        found[name] = all(torch.equal(mine, other) for other in others)
    return found


def train_in_pieces(root: Path, run: str, pieces: list[tuple[str, int]], options: tuple[str, ...]) -> list[float]:
    """A run that stops at each given step and goes on with the next mesh; the losses of all its steps."""
    for mesh, stop in pieces:
        train(tiny_config(root, f"run={run}", f"parallel={mesh}", f"trainer.stop_at_step={stop}", *options), Silent())
    return losses(root, run)


def losses(root: Path | str, run: str) -> list[float]:
    records = read_metrics(open_store(str(root)), run)
    return [record["train/loss"] for record in records if "train/loss" in record]


def stops_and_whole_runs(root: Path, meshes: list[str], options: tuple[str, ...]) -> dict[str, list[list[float]]]:
    """By mesh, the losses of a run that was never stopped and of one that was stopped in the middle."""
    last = 8
    return {
        mesh: [
            train_in_pieces(root, f"{mesh}-whole", [(mesh, last)], options),
            train_in_pieces(root, f"{mesh}-parts", [(mesh, 3), (mesh, last)], options),
        ]
        for mesh in meshes
    }


class Notes(Silent):
    """Keeps what is said."""

    def __init__(self) -> None:
        self.said: list[str] = []

    def note(self, text: str) -> None:
        self.said.append(text)


def samples(root: str, meshes: list[str]) -> dict[str, list[str]]:
    """By mesh, the text that a run of three steps samples after the second."""
    found = {}
    for mesh in meshes:
        notes = Notes()
        options = ("trainer.steps=3", "trainer.sample_every=2", "trainer.sample_tokens=6", "trainer.device=cpu")
        train(tiny_config(root, f"run={mesh}", f"parallel={mesh}", *options), notes)
        found[mesh] = [text for text in notes.said if text.startswith("sample: ")]
    return found
