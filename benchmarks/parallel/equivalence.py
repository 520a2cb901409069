"""Every parallel mode against one process: same seed, same batches, float32; loss, gradients and norm.

    python benchmarks/parallel/equivalence.py --world 2 4 8   # measures, and writes equivalence.json and the table of docs/parallelism.md

One list of cases serves this table and the tests. One group of processes per world size goes through the cases of that
size, since starting a process costs more than any of them.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))  # where this is run as a script

from benchmarks.parallel.deepspeed_cases import CASES as DEEPSPEED
from benchmarks.parallel.deepspeed_cases import whole_gradient
from benchmarks.parallel.document import insert
from benchmarks.parallel.processes import run_ranks

STEPS, SEQUENCES, LENGTH = 5, 8, 32
MODELS = {
    # A vocabulary that needs padding, so that the padding is divided too.
    "gpt2": ("model=gpt2-tiny", "tokenizer=bytes", "model.pad_vocab_to=64"),  # tied head, biases, learned positions
    "llama": ("model=llama-tiny", "tokenizer=bytes", "model.mlp_width=96"),  # untied, grouped queries, rotary positions
    "qwen3": ("model=llama-tiny", "tokenizer=bytes", "model.mlp_width=96", "model.qk_norm=true"),
}
SIZE = (
    "model.layers=4",
    "model.width=32",
    "model.heads=4",
    "model.max_length=64",
    f"trainer.sequence_length={LENGTH}",
    f"trainer.batch_tokens={SEQUENCES * LENGTH}",
    f"trainer.steps={STEPS}",
    "optimizer.lr=1e-2",
    "lr_schedule=constant",
    "lr_schedule.warmup_steps=0",
    "trainer.device=cpu",
    f"trainer.validate_every={STEPS}",
    "seed=7",
)
LOSS, GRADIENT, NORM = 5e-6, 1e-7, 1e-5  # the differences that are allowed; the last is relative


@dataclass(frozen=True)
class Case:
    """A named configuration; `degrees` multiply to its world size."""

    name: str
    world_size: int
    overrides: tuple[str, ...]
    model: str = "gpt2"
    micro_batch: int = 2
    clip: float | None = 0.5  # below the norms that occur, so that it acts
    bf16: bool = False
    slow: bool = False  # left to `make test-slow`

    def settings(self) -> list[str]:
        clip = "null" if self.clip is None else str(self.clip)
        precision = "bf16-mixed" if self.bf16 else "32-true"
        return [
            *MODELS[self.model],
            *SIZE,
            f"trainer.micro_batch={self.micro_batch}",
            f"trainer.clip_norm={clip}",
            f"trainer.precision={precision}",
            *self.overrides,
        ]


@dataclass
class Outcome:
    """What a training of STEPS steps showed."""

    losses: list[float] = field(default_factory=list)
    norms: list[float] = field(default_factory=list)
    gradients: dict[str, Any] = field(default_factory=dict)  # of the first step, before clipping
    validation: float = 0.0
    global_step: int = 0


def cases(world_size: int | None = None) -> list[Case]:
    found = list(_cases())
    return [case for case in found if world_size in (None, case.world_size)]


def _cases() -> Iterator[Case]:
    for model in ("gpt2", "llama"):
        more = model == "llama"  # each mode once in every run of the tests
        yield Case(f"ddp x2, {model}", 2, ("parallel=ddp",), model, slow=more)
        yield Case(f"fsdp x2, {model}", 2, ("parallel=fsdp",), model)
        yield Case(f"tp x2, {model}", 2, ("parallel=tp",), model)
        yield Case(f"pp x2 1f1b, {model}", 2, ("parallel=pp",), model)
        yield Case(f"pp x2 zbv, {model}", 2, ("parallel=pp", "parallel.schedule=zbv"), model, slow=more)
        yield Case(f"hsdp 2x2, {model}", 4, ("parallel=hsdp",), model, slow=more)
        yield Case(f"tp-fsdp 2x2, {model}", 4, ("parallel=tp-fsdp",), model, slow=more)
        yield Case(f"pp-fsdp 2x2, {model}", 4, ("parallel=pp-fsdp",), model, slow=more)
        product = ("parallel=pp", "parallel.pipeline=2", "parallel.tensor=2")
        yield Case(f"pp x tp 2x2, {model}", 4, product, model, slow=more)
        yield Case(f"hsdp x tp 2x2x2, {model}", 8, ("parallel=hsdp", "parallel.tensor=2"), model, slow=True)
        yield Case(f"pp-tp-fsdp 2x2x2, {model}", 8, ("parallel=pp-tp-fsdp",), model, slow=True)
    yield from _context_cases()
    yield Case("fsdp x2, no accumulation", 2, ("parallel=fsdp",), micro_batch=4)
    yield Case("fsdp x2, no clipping", 2, ("parallel=fsdp",), clip=None)
    yield Case("fsdp x2, reduced each micro-batch", 2, ("parallel=fsdp", "parallel.reduce_once=false"))
    yield Case("fsdp x2, activations recomputed", 2, ("parallel=fsdp", "trainer.activation_checkpointing=full"))
    yield Case("tp x2, no accumulation", 2, ("parallel=tp",), micro_batch=8, slow=True)
    yield Case("tp x2, no clipping", 2, ("parallel=tp",), clip=None, slow=True)
    yield Case("tp x2, qwen3", 2, ("parallel=tp",), "qwen3")
    yield Case("pp x2 gpipe", 2, ("parallel=pp", "parallel.schedule=gpipe"), slow=True)
    yield Case("pp x2 interleaved", 2, ("parallel=pp", "parallel.schedule=interleaved-1f1b"))
    yield Case("pp x2, accumulation", 2, ("parallel=pp", "parallel.pipeline_micro_batches=2"))
    accumulated = ("parallel=pp", "parallel.schedule=zbv", "parallel.pipeline_micro_batches=2")
    yield Case("pp x2 zbv, accumulation", 2, accumulated, slow=True)
    yield Case("pp x2, no clipping", 2, ("parallel=pp",), clip=None, slow=True)
    yield Case("pp x2, activations recomputed", 2, ("parallel=pp", "trainer.activation_checkpointing=full"), slow=True)
    accumulated = ("parallel=pp-fsdp", "parallel.pipeline_micro_batches=2")
    yield Case("pp-fsdp 2x2, accumulation", 4, accumulated, micro_batch=1, slow=True)
    yield Case("pp-fsdp 2x2 zbv", 4, ("parallel=pp-fsdp", "parallel.schedule=zbv"), slow=True)
    yield Case("fsdp x4", 4, ("parallel=fsdp",), slow=True)
    yield Case("fsdp x2, bf16", 2, ("parallel=fsdp",), bf16=True)
    yield Case("tp x2, bf16", 2, ("parallel=tp",), bf16=True, slow=True)
    yield Case("pp x2, bf16", 2, ("parallel=pp",), bf16=True, slow=True)
    for name, (world_size, overrides, model, slow) in DEEPSPEED.items():
        yield Case(name, world_size, overrides, model, bf16="bf16" in name, slow=slow)


def _context_cases() -> Iterator[Case]:
    for model in ("gpt2", "llama"):
        for method in ("ring", "allgather", "ulysses"):
            by = f"parallel.context_method={method}"
            product = ("parallel=cp", by, "parallel.context=2")
            # Each method alone in every run of the tests, and each product once.
            yield Case(f"cp x2 {method}, {model}", 2, ("parallel=cp", by), model)
            yield Case(f"cp x4 {method}, {model}", 4, ("parallel=cp", by), model, slow=True)
            products = {
                "fsdp": "parallel.shard=2",
                "hsdp": "parallel.replicate=2",
                "tp": "parallel.tensor=2",
                "pp": "parallel.pipeline=2",
            }
            for name, degree in products.items():
                slow = (model, method) != ("llama", "ring") or name == "hsdp"
                yield Case(f"cp x {name} 2x2 {method}, {model}", 4, (*product, degree), model, slow=slow)


def reference(case: Case) -> Case:
    """The same model, batch and clipping on one device."""
    return Case(f"single, {case.model}", 1, ("parallel=single",), case.model, 8, case.clip, case.bf16)


def batches(vocabulary: int) -> list[Any]:
    import torch

    made = torch.Generator().manual_seed(1)
    return [torch.randint(0, vocabulary, (SEQUENCES, LENGTH + 1), generator=made) for _ in range(STEPS)]


def train(case: Case) -> Outcome:
    """Through Lightning's trainer, as `skytrain train` does it, with batches from memory."""
    import lightning.pytorch as pl
    import torch
    from torch.distributed.tensor import DTensor
    from torch.utils.data import DataLoader

    from skytrain.config.compose import compose
    from skytrain.parallel import Ranks, uses_deepspeed
    from skytrain.storage import open_store
    from skytrain.training import CausalLM, plan_training
    from skytrain.training.factory import make_trainer, outline

    config = compose(case.settings()).config
    ranks = Ranks.from_environment() if case.world_size > 1 else Ranks()
    plan = plan_training(config, ranks)
    outcome = Outcome()
    whole = batches(config.model.vocab_size)

    class Watch(pl.Callback):
        def on_before_optimizer_step(self, trainer: Any, module: Any, optimizer: Any) -> None:
            if not outcome.gradients and not trainer.fit_loop._should_accumulate():  # which DeepSpeed asks for too
                for name, parameter in module.model.named_parameters():
                    grad = whole_gradient(parameter) if uses_deepspeed(config) else parameter.grad
                    grad = grad.full_tensor() if isinstance(grad, DTensor) else grad
                    outcome.gradients[name] = grad.detach().clone()

        def on_train_batch_end(self, trainer: Any, module: Any, outputs: Any, batch: Any, index: int) -> None:
            if (index + 1) % plan.micro_batches == 0:
                outcome.losses.append(module.take_loss(plan.micro_batches))
                outcome.norms.append(float(module.grad_norm))

    def loader() -> list[Any]:
        rank, world = 0, 1
        if trainer.distributed_sampler_kwargs:
            rank, world = (trainer.distributed_sampler_kwargs[key] for key in ("rank", "num_replicas"))
        size = plan.micro_batch
        return [
            batch[start + rank * size : start + (rank + 1) * size]
            for batch in whole
            for start in range(0, SEQUENCES, size * world)
        ]

    class Data(pl.LightningDataModule):
        def train_dataloader(self) -> Any:
            return DataLoader(loader(), batch_size=None)  # type: ignore[arg-type]

        def val_dataloader(self) -> Any:
            # An uneven end: three rows for the first data-parallel rank, none for the others.
            kwargs = trainer.distributed_sampler_kwargs
            return DataLoader([whole[0][: 3 if not kwargs or kwargs["rank"] == 0 else 0]], batch_size=None)  # type: ignore[arg-type]

    torch.manual_seed(0)
    trainer = make_trainer(config, plan, open_store(tempfile.gettempdir()), [Watch()], [])
    module = CausalLM(
        outline(config),
        optimizer=config.optimizer,
        schedule=config.lr_schedule,
        total_steps=STEPS,
        clip_norm=config.trainer.clip_norm,
    )
    trainer.fit(module, datamodule=Data())
    outcome.global_step, outcome.validation = trainer.global_step, module.val_loss or 0.0
    return outcome


def compare(mine: Outcome, single: Outcome) -> dict[str, float]:
    """The largest differences. Gradients are of those parameters that this rank holds."""
    gradients = [
        float((grad - single.gradients["embedding.tokens.weight" if _copy(name, single) else name]).abs().max())
        for name, grad in mine.gradients.items()
    ]
    return {
        "loss": max(abs(a - b) for a, b in zip(mine.losses, single.losses, strict=True)),
        "gradient": max(gradients),
        "norm": max(abs(a - b) / b for a, b in zip(mine.norms, single.norms, strict=True)),
        "validation": abs(mine.validation - single.validation),
        "steps": abs(mine.global_step - single.global_step),
    }


def _copy(name: str, single: Outcome) -> bool:
    """The last stage's own copy of a tied head."""
    return name not in single.gradients


def _work(chosen: list[Case], singles: dict[str, Outcome]) -> dict[str, dict[str, float]]:
    """One process of a world: goes through the cases and returns the differences that it saw."""
    return {case.name: compare(train(case), singles[_reference_name(case)]) for case in chosen}


def _reference_name(case: Case) -> str:
    return f"{case.model}-{case.clip}-{case.bf16}"


def run(chosen: Iterable[Case]) -> dict[str, dict[str, float]]:
    """The worst difference of any rank, by case."""
    import torch

    chosen = list(chosen)
    torch.set_num_threads(1)
    references = {_reference_name(case): reference(case) for case in chosen}
    singles = {name: train(case) for name, case in references.items()}
    worst: dict[str, dict[str, float]] = {}
    for world_size in sorted({case.world_size for case in chosen}):
        here = [case for case in chosen if case.world_size == world_size]
        for seen in run_ranks(world_size, _work, here, singles):
            for name, differences in seen.items():
                before = worst.setdefault(name, differences)
                worst[name] = {key: max(before[key], value) for key, value in differences.items()}
    return worst


def table(differences: dict[str, dict[str, float]]) -> str:
    lines = [
        "| configuration | loss | step-0 gradient | norm, relative | validation |",
        "| --- | --- | --- | --- | --- |",
    ]
    for name, seen in differences.items():
        lines.append(
            f"| {name} | {seen['loss']:.1e} | {seen['gradient']:.1e} | {seen['norm']:.1e} | {seen['validation']:.1e} |"
        )
    return "\n".join(lines) + "\n"


def main() -> None:
    options = argparse.ArgumentParser()
    options.add_argument("--world", type=int, nargs="*", default=[2, 4, 8])
    given = options.parse_args()
    measured = Path(__file__).with_suffix(".json")
    before = json.loads(measured.read_text()) if measured.exists() else {}
    before |= run(case for case in cases() if case.world_size in given.world)
    known = {case.name: before[case.name] for case in cases() if case.name in before}
    measured.write_text(json.dumps(known, indent=1))
    text = table(known)
    print(text)
    insert("equivalence", text)


if __name__ == "__main__":
    main()
