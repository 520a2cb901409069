"""A whole model on one device, as evaluation and generation use it."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ..models import KVCache, lm_loss

AUTOCAST = {"bf16-mixed": torch.bfloat16, "16-mixed": torch.float16}


class WholeModel:
    """Computes in `precision` on `device`; tokens may come from anywhere.

    Between two calls the model is as the caller left it: in training or not, with or without gradients.
    """

    def __init__(self, model: nn.Module, device: torch.device | None = None, precision: str = "32-true") -> None:
        self.config: Any = model.config
        self.device = device or next(model.parameters()).device
        self.takes_cache = "cache" in inspect.signature(model.forward).parameters
        self._model = model.to(self.device, dtype=torch.bfloat16 if precision == "bf16-true" else None)
        self._autocast = AUTOCAST.get(precision)

    def loss(self, rows: np.ndarray) -> Tensor:
        """The mean loss of predicting each token of (sequences, length + 1) from those before it."""
        tokens = self._to_device(torch.from_numpy(rows))
        with self._computing():
            return lm_loss(self._model, tokens[:, :-1], tokens[:, 1:])

    def last_logits(self, tokens: list[int], cache: KVCache | None = None) -> Tensor:
        """Logits of what follows the tokens, of which those in the cache are not computed again."""
        new = tokens if cache is None else tokens[cache.length :]
        inputs = self._to_device(torch.tensor([new]))
        with self._computing():
            logits = self._model(inputs) if cache is None else self._model(inputs, cache)
        return logits[0, -1]

    def new_cache(self, tokens: int) -> KVCache | None:
        """For a text of so many tokens, or as many as the model can see; None for a model that takes no cache."""
        longest = int(getattr(self._model, "cache_length", self.config.max_length))
        return KVCache(min(longest, tokens)) if self.takes_cache else None

    def _to_device(self, tokens: Tensor) -> Tensor:
        if self.device.type == "cuda":
            return tokens.pin_memory().to(self.device, non_blocking=True)
        return tokens.to(self.device)

    @contextlib.contextmanager
    def _computing(self) -> Iterator[None]:
        was_training = self._model.training
        lowered = torch.autocast(self.device.type, self._autocast) if self._autocast else contextlib.nullcontext()
        self._model.eval()
        try:
            with torch.inference_mode(), lowered:
                yield
        finally:
            self._model.train(was_training)
