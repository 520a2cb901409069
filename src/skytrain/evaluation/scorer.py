"""What evaluators and generation see of a model, however many ranks hold it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Protocol

from torch import Tensor

from ..models import KVCache


class Scorer(Protocol):
    """What a model, or the strategy that spreads one over a mesh, offers to evaluators."""

    config: Any

    @property
    def window(self) -> int:
        """The longest sequence that it sees."""
        ...

    def mean_loss(self, batches: Iterable[Tensor]) -> float:
        """Nats per target over batches of (sequences, length + 1) tokens; on several ranks each brings its own share."""
        ...

    def log_probs(self, tokens_bt: Tensor, targets_bt: Tensor) -> Tensor:
        """The log-probability of each target after the tokens up to its position, in float32, on every rank."""
        ...

    def last_logits(self, tokens: list[int], cache: KVCache | None = None) -> Tensor:
        """Logits over the vocabulary of what follows the tokens, the same on every rank."""
        ...

    def new_cache(self, tokens: int) -> KVCache | None:
        """A cache for a text of so many tokens, where the model takes one."""
        ...
