"""Loss of a model on held-out windows: nats per token, perplexity, and bits per byte of the original text."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch

from ..tokens import Tokenizer, TokenSplit
from .whole_model import WholeModel


@dataclass(frozen=True)
class LossReport:
    loss: float
    perplexity: float
    bits_per_byte: float
    tokens: int
    windows: int


@dataclass(frozen=True)
class HeldOut:
    """The text to measure by: the first windows of a split, in order, so that the same call always takes the same text."""

    split: TokenSplit
    tokenizer: Tokenizer | None  # None for synthetic tokens, which stand for no bytes
    sequence_length: int
    batch: int  # sequences at a time, or as many fewer as fit
    max_tokens: int | None = None

    @property
    def windows(self) -> int:
        windows = self.split.windows(self.sequence_length)
        return windows if self.max_tokens is None else min(windows, max(1, self.max_tokens // self.sequence_length))


def evaluate_loss(
    model: WholeModel, held_out: HeldOut, progress: Callable[[int, int], None] | None = None
) -> LossReport:
    """Bits per byte divides by the bytes of the very tokens that were predicted; the end-of-text token is no text and has
    none. Without a tokenizer it is not a number.
    """
    length, windows, batch = held_out.sequence_length, held_out.windows, held_out.batch
    byte_lengths = token_byte_lengths(held_out.tokenizer) if held_out.tokenizer else None
    nats, text_bytes, done = torch.zeros((), dtype=torch.float64, device=model.device), 0, 0
    while done < windows:
        rows = held_out.split.batch(np.arange(done, min(done + batch, windows)), length)
        try:
            loss = model.loss(torch.from_numpy(rows))
        except torch.OutOfMemoryError:
            if len(rows) == 1:
                raise
            batch = len(rows) // 2
            continue
        # Kept on the device: asking for the number would wait for each batch.
        nats = nats + loss.double() * len(rows) * length
        if byte_lengths is not None:
            text_bytes += int(byte_lengths[rows[:, 1:]].sum())
        done += len(rows)
        if progress:
            progress(done, windows)
    return _report(float(nats), text_bytes, windows, windows * length)


def _report(nats: float, text_bytes: int, windows: int, tokens: int) -> LossReport:
    loss = nats / tokens
    return LossReport(
        loss=loss,
        perplexity=math.exp(loss) if loss < 700 else math.inf,
        bits_per_byte=nats / math.log(2) / text_bytes if text_bytes else math.nan,
        tokens=tokens,
        windows=windows,
    )


def token_byte_lengths(tokenizer: Tokenizer) -> np.ndarray:
    """How many bytes of text each token stands for."""
    lengths = np.array([len(tokenizer.decode_bytes([token])) for token in range(tokenizer.vocab_size)], dtype=np.int64)
    lengths[tokenizer.eot] = 0
    return lengths
