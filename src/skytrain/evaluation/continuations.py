"""Texts to score: tokens of which the last ones are the continuation whose log-probability is asked for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ..config import SkytrainError


@dataclass(frozen=True)
class Continuation:
    """A text whose tokens from `start` on are scored, each given all before it."""

    tokens: tuple[int, ...]
    start: int

    @property
    def inputs(self) -> tuple[int, ...]:
        """What the model reads; the last token is only a target."""
        return self.tokens[:-1]

    @property
    def scored(self) -> int:
        return len(self.tokens) - self.start


@dataclass(frozen=True)
class ContinuationScores:
    """The summed log-probability of each continuation's tokens, and whether every one of them was the likeliest."""

    log_probs: np.ndarray  # float64
    greedy: np.ndarray  # bool


def make_continuation(context: Sequence[int], continuation: Sequence[int], window: int) -> tuple[Continuation, bool]:
    """Return the continuation after its context, and whether the context had to be cut.

    The model reads at most `window` tokens: as lm-evaluation-harness does, the context loses its first ones.
    """
    if not context or not continuation:
        raise SkytrainError("a continuation and its context need at least one token each")
    if len(continuation) > window:
        raise SkytrainError(
            f"a continuation of {len(continuation)} tokens does not fit the model, which sees {window} at a time"
        )
    tokens = (*context, *continuation)
    kept = tokens[-(window + 1) :]
    return Continuation(kept, len(kept) - len(continuation)), len(kept) < len(tokens)


def rolling_windows(tokens: Sequence[int], prefix: int, window: int) -> list[Continuation]:
    """Return continuations that score each token of a text once, the first of them after `prefix`.

    These are lm-evaluation-harness's windows: each holds as many tokens as the model sees, and the last one reaches back
    to be as long as the others.
    """
    continuations = []
    for done in range(0, len(tokens), window):
        end = min(done + window, len(tokens))
        read = [prefix, *tokens[: end - 1]] if done == 0 else list(tokens[max(0, end - window - 1) : end - 1])
        held = (*read, tokens[end - 1])
        continuations.append(Continuation(held, len(held) - (end - done)))
    return continuations
