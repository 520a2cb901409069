"""The interface through which evaluators and generation use a model, however it is distributed over ranks."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Protocol

from torch import Tensor

from ..models import Branches, KVCache
from ..tokens import Batch


@dataclass(frozen=True)
class TargetScores:
    """The log-probability of each target, in float32, and whether the model finds no token likelier."""

    log_probs: Tensor
    greedy: Tensor


@dataclass(frozen=True)
class DataShare:
    """Ranks that compute different rows at the same time: this one's index among them, and their number."""

    index: int = 0
    count: int = 1


@dataclass(frozen=True)
class RowLengths:
    """Lengths of rows that hold several texts: the one to fill, and the longest that a longer text may take."""

    usual: int
    longest: int


class Scorer(Protocol):
    """What a model, or the strategy that distributes one over a mesh, offers to evaluators."""

    config: Any

    @property
    def window(self) -> int:
        """The longest sequence that the model can see."""
        ...

    def mean_loss(self, batches: Iterable[Batch | Tensor]) -> float:
        """Return the nats per target over batches, or plain (sequences, length + 1) tokens; each rank passes its share."""
        ...

    def log_probs(self, tokens_bt: Tensor, targets_bt: Tensor) -> Tensor:
        """Return the log-probability of each target after the tokens up to its position, in float32, on every rank."""
        ...

    def last_logits(self, tokens: list[int], cache: KVCache | None = None) -> Tensor:
        """Return the logits over the vocabulary for the token after `tokens`, the same on every rank."""
        ...

    def new_cache(self, tokens: int) -> KVCache | None:
        """Return a cache for a text of `tokens` tokens, where the model takes one."""
        ...

    # For many short texts. Ranks of different shares pass different rows, in the same number of calls.

    @property
    def share(self) -> DataShare: ...

    @property
    def batch_tokens(self) -> int:
        """The number of tokens that a pass should have."""
        ...

    @property
    def packed_rows(self) -> RowLengths | None:
        """The lengths of rows that hold several texts; None for a model that takes one text in a row."""
        ...

    def row_length(self, tokens: int) -> int:
        """Return the length to which rows of so many tokens are padded."""
        ...

    def target_scores(self, tokens_bt: Tensor, targets_bt: Tensor) -> TargetScores:
        """Return the scores of targets, like `log_probs`, for rows of this rank's share."""
        ...

    def branch_scores(self, tokens_bt: Tensor, branches: Branches, targets_n: Tensor) -> TargetScores:
        """Return the scores of the targets at the positions that `branches` asks for."""
        ...

    def add_up(self, values: Tensor) -> Tensor:
        """Return the sum over the ranks of all shares, on every rank."""
        ...
