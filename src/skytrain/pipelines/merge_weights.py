"""The weights of a merge, where held-out text decides them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from ..config import Config, ModelConfig, build
from ..evaluation import HeldOut, WholeModel, evaluate_loss, window_log_likelihoods
from ..merging import FoundWeights, MergeInput, MergeMethod, MergePlan, greedy_soup, load_merged, posterior_weights
from ..models import build_model, choose_device_type
from ..runs import Reporter
from ..storage import Store
from ..tokens import Batch
from .evaluate import EvaluatedModel, open_held_out, token_limit

SAMPLE_WINDOWS = 100  # of a posterior


@dataclass(frozen=True)
class HeldOutText:
    """Which text decides: of the configured data, or of the first run's own."""

    configured: bool = False
    max_tokens: str | None = None  # as 100K; None: the whole validation split, or 100 windows for a posterior


class SoupTaster:
    """One model in memory, filled with one merge after another."""

    def __init__(self, config: Config, inputs: Sequence[MergeInput]) -> None:
        settings: ModelConfig = build(ModelConfig, dict(inputs[0].model), "model")
        self._inputs = inputs
        self._model = build_model(settings, seed=0, start_weights=False).eval()
        self._whole = WholeModel(self._model, torch.device(choose_device_type(config.trainer.device)))

    def average(self, weights: tuple[float, ...]) -> WholeModel:
        load_merged(self._model, MergePlan(self._inputs, MergeMethod("average", weights)))
        return self._whole


def open_text(config: Config, store: Store, inputs: Sequence[MergeInput], text: HeldOutText) -> HeldOut:
    run = None if text.configured else next((each.run for each in inputs if each.run is not None), None)
    first = inputs[0]
    model = EvaluatedModel(first.tokenizer, int(first.model["max_length"]), first.label, run)
    return open_held_out(config, store, model, "validation", token_limit(text.max_tokens))


def greedy_weights(taster: SoupTaster, held_out: HeldOut, labels: Sequence[str], reporter: Reporter) -> FoundWeights:
    """A greedy soup by the loss on held-out text."""
    measured = 0

    def loss_of(weights: tuple[float, ...]) -> float:
        nonlocal measured
        loss = evaluate_loss(taster.average(weights), held_out).loss
        measured += 1
        reporter.progress("greedy soup", measured, 2 * len(labels) - 1, f"loss {loss:.4f}")
        return loss

    return greedy_soup(labels, loss_of)


def sample_posterior(taster: SoupTaster, held_out: HeldOut, labels: Sequence[str], reporter: Reporter) -> FoundWeights:
    """The domain posterior on the first windows of held-out text."""
    rows = list(sample_windows(held_out))
    found = []
    for number in range(len(labels)):
        alone = tuple(float(each == number) for each in range(len(labels)))
        found.append(window_log_likelihoods(taster.average(alone), rows))
        reporter.progress("posterior", number + 1, len(labels), labels[number])
    return posterior_weights(labels, torch.stack(found))


def sample_windows(held_out: HeldOut) -> Iterator[Batch]:
    count = held_out.windows if held_out.max_tokens else min(held_out.windows, SAMPLE_WINDOWS)
    for first in range(0, count, held_out.batch):
        windows = np.arange(first, min(first + held_out.batch, count))
        yield held_out.split.batch(windows, held_out.sequence_length)
