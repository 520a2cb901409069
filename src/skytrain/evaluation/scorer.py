"""The interface through which evaluators and generation use a model, however it is distributed over ranks."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Protocol

from torch import Tensor

from ..models import KVCache


class Scorer(Protocol):
    """What a model, or the strategy that distributes one over a mesh, offers to evaluators."""

    config: Any

    @property
    def window(self) -> int:
        """The longest sequence that the model can see."""
        ...

    def mean_loss(self, batches: Iterable[Tensor]) -> float:
        """Nats per target over batches of (sequences, length + 1) tokens; each rank passes its own share."""
        ...

    def log_probs(self, tokens_bt: Tensor, targets_bt: Tensor) -> Tensor:
        """The log-probability of each target after the tokens up to its position, in float32, on every rank."""
        ...

    def last_logits(self, tokens: list[int], cache: KVCache | None = None) -> Tensor:
        """Logits over the vocabulary for the token after `tokens`, the same on every rank."""
        ...

    def new_cache(self, tokens: int) -> KVCache | None:
        """A cache for a text of `tokens` tokens, where the model takes one."""
        ...
