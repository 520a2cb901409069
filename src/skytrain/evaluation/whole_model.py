"""A whole model on one device, as evaluation and generation use it."""

from __future__ import annotations

import contextlib
import inspect
import sys
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from ..models import Branches, KVCache, count_targets, lm_loss, split_auxiliary, weighted
from ..tokens import Batch, as_batch
from .scorer import DataShare, RowLengths, TargetScores

PACKED_TOKENS = {"cuda": 1024, "cpu": 512}  # in a row of several texts; a CPU computes the whole square of attention
PASS_TOKENS = {"cuda": 32768, "cpu": 2048}
LOGIT_VALUES = 1 << 31  # of a pass, at most: 8 GiB in float32
ROW_STEP = 32  # rows of one text are padded to a multiple of this
AUTOCAST = {"bf16-mixed": torch.bfloat16, "16-mixed": torch.float16}


class WholeModel:
    """A model that computes in `precision` on `device`; tokens may be on any device.

    After each call the model is as it was before: in training mode or not, with or without gradients.
    """

    def __init__(self, model: nn.Module, device: torch.device | None = None, precision: str = "32-true") -> None:
        self.config: Any = model.config
        self.device = device or next(model.parameters()).device
        self.takes_cache = "cache" in inspect.signature(model.forward).parameters
        self._model = model.to(self.device, dtype=torch.bfloat16 if precision == "bf16-true" else None)
        self._autocast = AUTOCAST.get(precision)

    def compile_blocks(self) -> None:
        """Compile the model's blocks, where it offers that, for rows of one shape: worthwhile for many passes."""
        compile_blocks = getattr(self._model, "compile_blocks", None)
        if compile_blocks is not None:
            compile_blocks()

    @property
    def window(self) -> int:
        return int(self.config.max_length)

    def loss(self, batch: Batch | Tensor) -> Tensor:
        """Return the mean loss of predicting each target of a batch from the tokens before it."""
        given = as_batch(batch)
        there = given.to(self.device)
        with self._computing():
            return split_auxiliary(lm_loss(self._model, there.tokens, there.targets, there.document_starts))[0]

    def mean_loss(self, batches: Iterable[Batch | Tensor]) -> float:
        """Return the nats per target. A batch for which memory does not suffice is halved, and those after it too."""
        nats, sequences = (torch.zeros((), dtype=torch.float64, device=self.device) for _ in range(2))
        most_rows = sys.maxsize
        for each in batches:
            batch = as_batch(each)
            while batch.rows:
                rows = batch.take(slice(most_rows))
                try:
                    loss = self.loss(rows)
                except torch.OutOfMemoryError:
                    if rows.rows == 1:
                        raise
                    most_rows = rows.rows // 2
                    continue
                # The sum stays on the device: reading it would wait for each batch.
                targets = rows.targets.to(self.device)
                share = count_targets(targets).double() / targets.size(1)  # in whole sequences
                nats, sequences = nats + weighted(loss.double(), share, targets), sequences + share
                batch = batch.take(slice(most_rows, None))
        return float(nats / sequences)

    def log_probs(self, tokens_bt: Tensor, targets_bt: Tensor, document_starts_bt: Tensor | None = None) -> Tensor:
        """Return the log-probability of each target after the tokens up to its position, in float32.

        With `document_starts_bt`, only after those of its document.
        """
        starts = {} if document_starts_bt is None else {"document_starts_bt": self._to_device(document_starts_bt)}
        with self._computing():
            logits = self._model(self._to_device(tokens_bt), **starts)
        return target_log_probs(logits, targets_bt.to(logits.device))

    @property
    def share(self) -> DataShare:
        return DataShare()

    def add_up(self, values: Tensor) -> Tensor:
        return values

    @property
    def batch_tokens(self) -> int:
        usual = PASS_TOKENS.get(self.device.type, PASS_TOKENS["cpu"])
        return max(1, min(usual, LOGIT_VALUES // int(self.config.vocab_size)))

    @property
    def packed_rows(self) -> RowLengths | None:
        model: Any = self._model
        if not getattr(model, "takes_branches", False):
            return None
        longest = min(self.window, model.cache_length)
        return RowLengths(min(longest, PACKED_TOKENS.get(self.device.type, PACKED_TOKENS["cpu"])), longest)

    def row_length(self, tokens: int) -> int:
        return min(self.window, -(-tokens // ROW_STEP) * ROW_STEP)

    def target_scores(self, tokens_bt: Tensor, targets_bt: Tensor) -> TargetScores:
        """Return the scores of each target after the tokens up to its position."""
        with self._computing():
            logits = self._logits(self._to_device(tokens_bt))
        return scores_of(logits, self._to_device(targets_bt))

    def branch_scores(self, tokens_bt: Tensor, branches: Branches, targets_n: Tensor) -> TargetScores:
        """Return the scores of targets in rows that hold several texts."""
        layout = (branches.trees_bt, branches.branches_bt, branches.places_bt, branches.asked_n)
        with self._computing():
            logits = self._model(self._to_device(tokens_bt), branches=Branches(*map(self._to_device, layout)))
        return scores_of(logits, self._to_device(targets_n))

    def last_logits(self, tokens: list[int], cache: KVCache | None = None) -> Tensor:
        """Return the logits of the token after `tokens`; those that are in the cache are not computed again."""
        return self.new_logits(tokens, cache)[-1]

    def new_logits(self, tokens: list[int], cache: KVCache | None = None) -> Tensor:
        """Return the logits after each of the `tokens` that are not in the cache."""
        new = tokens if cache is None else tokens[cache.length :]
        with self._computing():
            return self._logits(self._to_device(torch.tensor([new])), cache)[0]

    def all_logits(self, tokens_bt: Tensor) -> Tensor:
        """Return the logits after each token."""
        with self._computing():
            return self._logits(self._to_device(tokens_bt))

    def _logits(self, tokens_bt: Tensor, cache: KVCache | None = None) -> Tensor:
        logits: Tensor = self._model(tokens_bt) if cache is None else self._model(tokens_bt, cache)
        return logits

    def new_cache(self, tokens: int) -> KVCache | None:
        """Return a cache for `tokens` tokens, or as many as the model can see; None for a model that takes no cache."""
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
            # Not inference mode: what a model keeps for its next pass may be needed by a backward pass.
            with torch.no_grad(), lowered:
                yield
        finally:
            self._model.train(was_training)


def target_log_probs(logits_btv: Tensor, targets_bt: Tensor) -> Tensor:
    """Return each target's log-probability from logits over the whole vocabulary, in float32 whatever their type."""
    return logits_btv.float().log_softmax(-1).gather(-1, targets_bt[..., None])[..., 0]


def scores_of(logits: Tensor, targets: Tensor) -> TargetScores:
    """Return each target's scores from logits over the whole vocabulary, in float32 whatever their type."""
    logits = logits.float()
    chosen = logits.gather(-1, targets[..., None])[..., 0]
    return TargetScores(chosen - logits.logsumexp(-1), chosen >= logits.amax(-1))
