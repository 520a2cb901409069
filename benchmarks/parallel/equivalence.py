"""Every parallel mode against one process: same seed, same batches, float32; loss, gradients and norm.

    python benchmarks/parallel/equivalence.py [--world 2 4 8] [--cases REGEX]

Measures, and writes equivalence.json and the table of docs/parallelism.md; what is not measured keeps its row.

One list of cases (cases.py) serves this table and the tests. One group of processes per world size goes through
the cases of that size, since starting a process costs more than any of them.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

sys.path.insert(0, str(Path(__file__).parents[2]))  # where this is run as a script

from benchmarks.parallel.cases import LENGTH, SEQUENCES, STEPS, Case, cases, reference
from benchmarks.parallel.deepspeed_cases import whole_gradient
from benchmarks.parallel.document import insert
from benchmarks.parallel.processes import alive, run_ranks

# the differences that are allowed; the last is relative
GRADIENT = 1e-7
NORM = 1e-5
TIE = 1e-6  # of scores: experts that are closer may be chosen either way


@dataclass
class Outcome:
    """What a training of STEPS steps showed."""

    losses: list[float] = field(default_factory=list)
    norms: list[float] = field(default_factory=list)
    gradients: dict[str, Any] = field(default_factory=dict)  # of the first step, before clipping
    validation: float = 0.0
    log_probs: Any = None  # of some targets, before the first step
    logits: Any = None  # of what follows some tokens, then too
    choices: Any = None  # the log-probabilities of continuations that share contexts, then too: (questions, endings)
    greedy: Any = None  # whether each of them is what the model would have said
    # By step, of all tokens and layers that this rank routed: scores by which experts are ranked, and which are chosen.
    routing: list[tuple[Any, Any]] = field(default_factory=list)
    global_step: int = 0


def batches(vocabulary: int, documents: bool = False, masked: bool = False, separate: bool = False) -> list[Any]:
    """The same batches for every case; with `documents` packed ones, whose rows have different numbers of targets.

    `masked` leaves out half of the targets, and all of them in some rows that make whole micro-batches.
    """
    import torch

    from skytrain.tokens import Batch

    made = torch.Generator().manual_seed(1)
    found = [torch.randint(0, vocabulary, (SEQUENCES, LENGTH + 1), generator=made) for _ in range(STEPS)]
    eot = vocabulary - 1
    if not documents:
        return [Batch(windows, document_starts=windows[:, :-1] == eot if separate else None) for windows in found]
    packed = []
    for windows in found:
        windows[:, 0] = eot
        counts = torch.ones_like(windows, dtype=torch.bool)
        starts = torch.zeros_like(counts)
        rows = zip(windows, counts, starts, torch.randint(2, LENGTH + 1, (SEQUENCES,), generator=made), strict=True)
        for row, counted, begins, held in rows:
            counted[held // 2] = False  # a piece that continues from another window
            begins[held // 2] = True
            row[held // 3] = eot
            counted[held // 3] = True
            begins[held:] = True  # padding
            counted[held:] = False
            row[held:] = eot
        starts |= windows == eot
        if masked:
            out = torch.rand(windows.shape, generator=made) < 0.5
            counts &= ~(out & (windows != eot))
            counts[2:4] = False
        packed.append(Batch(windows, counts[:, 1:], starts[:, :-1] if separate else None))
    return packed


def questions(vocabulary: int) -> list[list[Any]]:
    """Contexts with three endings each; the first ending of the last question is long enough to be alone in its row."""
    import torch

    from skytrain.evaluation.continuations import Continuation

    made = torch.Generator().manual_seed(3)

    def tokens(count: int) -> tuple[int, ...]:
        return tuple(torch.randint(0, vocabulary - 1, (count,), generator=made).tolist())

    groups = [
        [Continuation((*context, *tokens(1 + n)), len(context)) for n in range(3)]
        for context in map(tokens, range(1, 9, 2))
    ]
    return [*groups[:-1], [Continuation((*tokens(1), *tokens(LENGTH - 1)), 1), *groups[-1][1:]]]


class Unlimited:
    """In place of EvaluationLimits: no budget, and nothing that stops training."""

    def run(self, evaluator: Any, model: Any, steps: float = 0.0) -> Any:
        return evaluator.run(model)


def train(case: Case, *, evaluations: Literal["usual", "each step", "none"] = "usual") -> Outcome:
    """Through Lightning's trainer, as `skytrain train` does it, with batches from memory."""
    import lightning.pytorch as pl
    import torch
    from torch.distributed.tensor import DTensor
    from torch.utils.data import DataLoader

    from skytrain.config import compose, uses_deepspeed
    from skytrain.evaluation import ValidationLoss
    from skytrain.evaluation.scorer import Scorer
    from skytrain.evaluation.scoring import score_continuations
    from skytrain.jobs import Ranks
    from skytrain.parallel import ends_step
    from skytrain.storage import open_store
    from skytrain.training import make_module, make_trainer, outline, plan_training
    from skytrain.training.evaluations import Evaluations, Scheduled

    config = compose(case.settings()).config
    ranks = Ranks.from_environment() if case.world_size > 1 else Ranks()
    plan = plan_training(config, ranks)
    outcome = Outcome()
    whole = batches(config.model.vocab_size, case.documents, case.masked, config.loader.separate_documents)

    routed: list[tuple[Any, Any]] = []  # in the current step

    class Watch(pl.Callback):
        def on_before_optimizer_step(self, trainer: Any, module: Any, optimizer: Any) -> None:
            if not outcome.gradients and ends_step(trainer):  # which DeepSpeed asks for too
                trained = [(name, each) for name, each in module.model.named_parameters() if each.requires_grad]
                for name, parameter in trained:
                    grad = whole_gradient(parameter) if uses_deepspeed(config) else parameter.grad
                    grad = grad.full_tensor() if isinstance(grad, DTensor) else grad
                    outcome.gradients[name] = grad.detach().clone()

        def on_train_batch_end(self, trainer: Any, module: Any, outputs: Any, batch: Any, index: int) -> None:
            if (index + 1) % trainer.accumulate_grad_batches == 0:
                if routed:
                    outcome.routing.append(
                        (torch.cat([each[0] for each in routed]), torch.cat([each[1] for each in routed]))
                    )
                    routed.clear()
                outcome.losses.append(module.take_loss())
                outcome.norms.append(float(module.grad_norm))

    def loader() -> list[Any]:
        rank = 0
        world = 1
        if trainer.distributed_sampler_kwargs:
            rank, world = (trainer.distributed_sampler_kwargs[key] for key in ("rank", "num_replicas"))
        size = plan.micro_batch
        return [
            batch.take(slice(start + rank * size, start + (rank + 1) * size))
            for batch in whole
            for start in range(0, SEQUENCES, size * world)
        ]

    class Data(pl.LightningDataModule):
        def targets_in_step(self, step: int) -> int | None:
            return int((whole[step].targets >= 0).sum()) if case.documents else None

        def train_dataloader(self) -> Any:
            return DataLoader(loader(), batch_size=None)  # type: ignore[arg-type]

    def held_out() -> list[Any]:
        # An uneven end: three rows for the first data-parallel rank, none for the others.
        kwargs = trainer.distributed_sampler_kwargs
        return [whole[0].take(slice(3 if not kwargs or kwargs["rank"] == 0 else 0))]

    class Scores:
        name = "scores"

        def prepare(self) -> None:
            return

        def run(self, model: Scorer) -> dict[str, float]:
            scored = score_continuations(model, questions(config.model.vocab_size))
            if outcome.log_probs is not None:  # the later ones are there to disturb training if they can
                return {}
            outcome.choices = scored.log_probs.reshape(-1, 3)
            outcome.greedy = scored.greedy
            made = torch.Generator().manual_seed(2)
            # Shorter than what the mesh was built for.
            rows = torch.randint(0, config.model.vocab_size, (3, LENGTH - 4), generator=made)
            outcome.log_probs = model.log_probs(rows[:, :-1], rows[:, 1:]).cpu()
            outcome.logits = model.last_logits(rows[0].tolist()).float().cpu()[: config.model.vocab_size]
            return {}

    def listen(_: Any, step: int, metrics: Any) -> None:
        outcome.validation = metrics["val/loss"]

    each = 1 if evaluations == "each step" else None
    measured = [Scheduled(ValidationLoss(held_out), STEPS), Scheduled(Scores(), each, at_start=True)]
    torch.manual_seed(0)
    scheduled = measured if evaluations != "none" else []
    callbacks = [Watch(), Evaluations(scheduled, [listen], Unlimited(), lambda trainer, module, step: None)]
    trainer = make_trainer(config, plan, open_store(tempfile.gettempdir()), callbacks, [])
    module = make_module(config, plan, outline(config), lambda text: None)
    with recorded_routing(routed):
        trainer.fit(module, datamodule=Data())
    outcome.global_step = trainer.global_step
    return outcome


@contextmanager
def recorded_routing(rows: list[tuple[Any, Any]]) -> Iterator[None]:
    """Add to `rows` what routers see and choose in training."""
    from skytrain.models import Router

    choose = Router.choose

    def watched(router: Any, scores_bte: Any) -> Any:
        chosen = choose(router, scores_bte)
        if router.training:
            ranked = scores_bte if router.load_bias is None else scores_bte + router.load_bias.detach()
            rows.append((ranked.flatten(0, -2).clone(), chosen.flatten(0, -2).sort(-1).values))
        return chosen

    Router.choose = watched  # type: ignore[method-assign]
    try:
        yield
    finally:
        Router.choose = choose  # type: ignore[method-assign]


def rerouted(mine: Outcome, single: Outcome) -> tuple[int, int]:
    """Count tokens that went to other experts than in one process: where scores are apart, and where they are a tie.

    A rank's rows are found among those of one process by their scores, which are nearly the same.
    """
    import torch

    apart = ties = 0
    for (scores, chosen), (all_scores, all_chosen) in zip(mine.routing, single.routing, strict=False):
        nearest = torch.cdist(scores.double(), all_scores.double(), p=float("inf")).argmin(1)
        other = (chosen != all_chosen[nearest]).any(1)
        best = scores[other].sort(-1, descending=True).values
        close = (
            (best.diff(dim=-1).abs() <= TIE)[:, chosen.size(1) - 1] if chosen.size(1) < best.size(1) else other[other]
        )
        ties += int(close.sum())
        apart += int((~close).sum())
    return apart, ties


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
        "log_probs": float((mine.log_probs - single.log_probs).abs().max()),
        "logits": float((mine.logits - single.logits).abs().max()),
        "choices": float(abs(mine.choices - single.choices).max()),
        "answers": int(
            (mine.choices.argmax(-1) != single.choices.argmax(-1)).sum() + (mine.greedy != single.greedy).sum()
        ),
        "steps": abs(mine.global_step - single.global_step),
        **dict(zip(("rerouted", "ties"), rerouted(mine, single), strict=True)),
    }


def _copy(name: str, single: Outcome) -> bool:
    """The last stage's own copy of a tied head."""
    return name not in single.gradients


def _work(chosen: list[Case], singles: dict[str, Outcome]) -> dict[str, dict[str, float]]:
    """One process of a world: goes through the cases and returns the differences that it saw."""
    found = {}
    for case in chosen:
        alive()
        found[case.name] = compare(train(case), singles[case.reference_name])
    return found


def run(chosen: Iterable[Case]) -> dict[str, dict[str, float]]:
    """The worst difference of any rank, by case."""
    import torch

    chosen = list(chosen)
    torch.set_num_threads(1)
    references = {case.reference_name: reference(case) for case in chosen}
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
    options.add_argument("--cases", default="", help="only those whose name this expression finds")
    given = options.parse_args()
    measured = Path(__file__).with_suffix(".json")
    before = json.loads(measured.read_text()) if measured.exists() else {}
    before |= run(case for case in cases() if case.world_size in given.world and re.search(given.cases, case.name))
    known = {case.name: before[case.name] for case in cases() if case.name in before}
    measured.write_text(json.dumps(known, indent=1))
    text = table(known)
    print(text)
    insert("equivalence", text)


if __name__ == "__main__":
    main()
