"""Loss of a model on held-out windows: nats per token, perplexity, and bits per byte of the original text."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import nn

from ..models import lm_loss
from ..tokens import Tokenizer, TokenSplit


@dataclass(frozen=True)
class LossReport:
    loss: float
    perplexity: float
    bits_per_byte: float
    tokens: int
    windows: int


@torch.inference_mode()
def evaluate_loss(
    model: nn.Module,
    split: TokenSplit,
    tokenizer: Tokenizer | None,
    *,
    sequence_length: int,
    batch: int,
    max_tokens: int | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> LossReport:
    """Over the first windows of the split, in order, so that the same call always judges by the same text.

    Bits per byte divides by the bytes of the very tokens that were predicted; the end-of-text token is no text and has
    none. Without a tokenizer (synthetic tokens) it is not a number.
    """
    device = next(model.parameters()).device
    windows = split.windows(sequence_length)
    if max_tokens is not None:
        windows = min(windows, max(1, max_tokens // sequence_length))
    byte_lengths = token_byte_lengths(tokenizer) if tokenizer else None
    nats, text_bytes = 0.0, 0
    for start in range(0, windows, batch):
        rows = split.batch(np.arange(start, min(start + batch, windows)), sequence_length)
        tokens = torch.from_numpy(rows).to(device)
        nats += float(lm_loss(model, tokens[:, :-1], tokens[:, 1:]).double()) * len(rows) * sequence_length
        if byte_lengths is not None:
            text_bytes += int(byte_lengths[rows[:, 1:]].sum())
        if progress:
            progress(min(start + batch, windows), windows)
    predicted = windows * sequence_length
    loss = nats / predicted
    return LossReport(
        loss=loss,
        perplexity=math.exp(loss) if loss < 700 else math.inf,
        bits_per_byte=nats / math.log(2) / text_bytes if text_bytes else math.nan,
        tokens=predicted,
        windows=windows,
    )


def token_byte_lengths(tokenizer: Tokenizer) -> np.ndarray:
    """How many bytes of text each token stands for."""
    lengths = np.array([len(tokenizer.decode_bytes([token])) for token in range(tokenizer.vocab_size)], dtype=np.int64)
    lengths[tokenizer.eot] = 0
    return lengths
