"""The loss on held-out text: nats per token, perplexity, and bits per byte of the original text."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from ..tokens import Batch, Tokenizer, TokenSplit
from .scorer import Scorer


def perplexity(loss: float) -> float:
    """Return the perplexity of a loss in nats per token."""
    return math.exp(loss) if loss < 700 else math.inf


@dataclass(frozen=True)
class LossReport:
    loss: float
    perplexity: float
    bits_per_byte: float
    tokens: int
    windows: int


@dataclass(frozen=True)
class HeldOut:
    """The text to measure on: the first windows of a split, so that the same call always uses the same text."""

    split: TokenSplit
    tokenizer: Tokenizer | None  # None for synthetic tokens, which stand for no bytes
    sequence_length: int
    batch: int  # sequences at a time; a model may take fewer where memory is short
    max_tokens: int | None = None
    separate_documents: bool = False  # whether a model sees only the document that a token belongs to, as in training

    @property
    def windows(self) -> int:
        windows = self.split.windows(self.sequence_length)
        return windows if self.max_tokens is None else min(windows, max(1, self.max_tokens // self.sequence_length))


class HeldOutLoss:
    """An evaluator: loss, perplexity and bits per byte on held-out text.

    Bits per byte divides by the bytes of the predicted tokens; the end-of-text token counts none. Without a tokenizer
    it is not a number.
    """

    name = "loss"

    def __init__(self, held_out: HeldOut, progress: Callable[[int, int], None] | None = None) -> None:
        self._held_out = held_out
        self._progress = progress
        self._byte_lengths: np.ndarray | None = None
        self._text_bytes = 0
        self.targets = 0

    def prepare(self) -> None:
        if self._held_out.tokenizer is not None:
            self._byte_lengths = self._held_out.tokenizer.byte_lengths

    def run(self, model: Scorer) -> Mapping[str, float]:
        self._text_bytes = self.targets = 0
        loss = model.mean_loss(self._batches())
        bits = loss * self.targets / math.log(2)
        return {
            "eval/loss": loss,
            "eval/perplexity": perplexity(loss),
            "eval/bits_per_byte": bits / self._text_bytes if self._text_bytes else math.nan,
        }

    def _batches(self) -> Iterator[Batch]:
        length, windows, batch = self._held_out.sequence_length, self._held_out.windows, self._held_out.batch
        for first in range(0, windows, batch):
            last = min(first + batch, windows)
            starts = self._held_out.separate_documents
            rows = self._held_out.split.batch(np.arange(first, last), length, document_starts=starts)
            targets = rows.targets.numpy()
            targets = targets[targets >= 0]
            self.targets += len(targets)
            if self._byte_lengths is not None:
                self._text_bytes += int(self._byte_lengths[targets].sum())
            yield rows
            if self._progress:
                self._progress(last, windows)


def evaluate_loss(model: Scorer, held_out: HeldOut, progress: Callable[[int, int], None] | None = None) -> LossReport:
    """Run `HeldOutLoss` once; `progress` is called with the number of windows done and their total."""
    evaluator = HeldOutLoss(held_out, progress)
    evaluator.prepare()
    metrics = evaluator.run(model)
    return LossReport(
        loss=metrics["eval/loss"],
        perplexity=metrics["eval/perplexity"],
        bits_per_byte=metrics["eval/bits_per_byte"],
        tokens=evaluator.targets,
        windows=held_out.windows,
    )
