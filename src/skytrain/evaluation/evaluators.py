"""Evaluators: what is measured of a model, during training on any mesh and after it on any device.

An evaluator is one class in one file. It uses a model through `Scorer` only, so it does not depend on how the model is
distributed over ranks; where it is distributed, all ranks run the evaluator together.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import Protocol

import torch
from torch import Tensor

from ..config import ConfigError, EvaluatorConfig, load_class, make
from ..tokens import Batch, Tokenizer
from .generation import Sampling, generate
from .loss import perplexity
from .scorer import Scorer


class Evaluator(Protocol):
    """A measurement of a model. `run` returns metrics by the names that logs use, such as `val/loss`."""

    name: str

    def prepare(self) -> None:
        """Prepare for the first run; called once before it, when data loaders can be created."""
        ...

    def run(self, model: Scorer) -> Mapping[str, float]: ...


class ValidationLoss:
    """The loss on held-out batches. `make_batches` returns those of this rank."""

    name = "validation"

    def __init__(self, make_batches: Callable[[], Iterable[Batch | Tensor]]) -> None:
        self._make_batches = make_batches
        self._batches: Iterable[Batch | Tensor] = ()

    def prepare(self) -> None:
        self._batches = self._make_batches()

    def run(self, model: Scorer) -> Mapping[str, float]:
        loss = model.mean_loss(self._batches)
        return {"val/loss": loss, "val/perplexity": perplexity(loss)}


class Samples:
    """Text that the model generates. It is passed to `tell`; nothing is measured."""

    name = "sample"

    def __init__(
        self, tokenizer: Tokenizer, prompt: str, sampling: Sampling, max_tokens: int, tell: Callable[[str], None]
    ) -> None:
        self._tokenizer = tokenizer
        self._prompt = prompt
        self._sampling = sampling
        self._max_tokens = max_tokens
        self._tell = tell

    def prepare(self) -> None:
        return

    def run(self, model: Scorer) -> Mapping[str, float]:
        pieces = generate(model, self._tokenizer, self._prompt, self._sampling, max_tokens=self._max_tokens)
        self._tell(f"sample: {self._prompt + ''.join(pieces)!r}")
        return {}


def plugged_in_evaluator(config: EvaluatorConfig, tokenizer: Tokenizer) -> Evaluator:
    """Return the evaluator that `trainer.evaluators` names. A class that takes `tokenizer` gets the run's."""
    parameters = inspect.signature(load_class(config.target, "trainer.evaluators")).parameters
    given = {"tokenizer": tokenizer} if "tokenizer" in parameters else {}
    evaluator: Evaluator = make(config.target, config.args, key="trainer.evaluators", **given)
    missing = [name for name in ("name", "prepare", "run") if not hasattr(evaluator, name)]
    if missing:
        raise ConfigError("trainer.evaluators", f"{config.target} has no {missing[0]!r}", hint="see docs/extending.md")
    return evaluator


def padded(tokens_bt: Tensor, length: int) -> Tensor:
    """Pad rows to `length` with zeros, which do not change a causal model's outputs before them."""
    return torch.nn.functional.pad(tokens_bt, (0, length - tokens_bt.size(1)))
