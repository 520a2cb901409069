"""An ensemble: several models as one, by the mixture of their probabilities (branch-train-merge, arXiv 2208.03306).

    p(x_t | x_<t) = sum over experts j of p(j | x_<t) p_j(x_t | x_<t)

The weight of an expert at a token is its posterior after the text so far: by Bayes' rule from its prior and the
probability that it gave to that text. Each window of text begins with the prior again.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from ..models import Branches, KVCache
from ..storage import NotFound, Shape, Store, is_amount, is_texts, read_object, record_of
from ..tokens import Batch, as_batch
from .scorer import DataShare, RowLengths, TargetScores
from .whole_model import WholeModel

SHAPE: Shape = {"experts": is_texts, "prior": lambda value: isinstance(value, list)}
RATE = 0.3  # of the exponential moving average of an updating prior, as in the paper's code


@dataclass(frozen=True)
class EnsembleDefinition:
    """The models of an ensemble, and what is expected of them before any text."""

    experts: list[str]  # RUN@STEP, or folders
    prior: list[float]
    updating: bool = False  # in a loss over many windows: the prior follows the posteriors of the windows before

    def to_bytes(self) -> bytes:
        return (json.dumps(asdict(self), indent=2) + "\n").encode()


def ensemble_key(run: str) -> str:
    return f"runs/{run}/ensemble.json"


def read_ensemble(store: Store, run: str) -> EnsembleDefinition | None:
    """Return the definition of a run that is an ensemble; None for any other."""
    key = ensemble_key(run)
    try:
        with record_of(store, key):
            forest = EnsembleDefinition(**read_object(store, key, SHAPE))
            if not forest.experts or len(forest.experts) != len(forest.prior) or not all(map(is_amount, forest.prior)):
                raise ValueError("each expert needs a prior")
            return forest
    except NotFound:
        return None


class EnsembleCache(KVCache):
    """The caches of the experts, how likely each found the text so far, and what each predicts next."""

    def __init__(self, caches: Sequence[KVCache]) -> None:
        super().__init__(min(each.max_length for each in caches))
        self.caches = list(caches)
        self.evidence_k: Tensor | None = None
        self.predicted_kv: Tensor | None = None


class EnsembleModel:
    """A `Scorer` that mixes the probabilities of experts, all on one device."""

    def __init__(self, experts: Sequence[WholeModel], prior: Sequence[float], *, updating: bool = False) -> None:
        assert len(experts) == len(prior) > 0
        self.experts = list(experts)
        self.config = experts[0].config
        self.device = experts[0].device
        self._prior_k = torch.tensor(prior, dtype=torch.float64, device=self.device)
        self._updating = updating

    @property
    def window(self) -> int:
        return min(each.window for each in self.experts)

    def mean_loss(self, batches: Iterable[Batch | Tensor]) -> float:
        """Return the nats per target over windows in their order; an updating prior starts anew with each call."""
        prior_k = self._prior_k
        nats = 0.0
        count = 0
        for rows in batches:
            batch = as_batch(rows)
            tokens, targets = batch.tokens, batch.targets
            following = torch.cat((tokens[:, 1:], targets[:, -1:].clamp(min=0)), dim=1)
            log_probs = [each.log_probs(tokens, following, batch.document_starts).double() for each in self.experts]
            probs_btk = torch.stack(log_probs, dim=-1)
            counted = (targets >= 0).to(self.device)
            for row, mask in zip(probs_btk, counted, strict=True):
                mixed_t = _mix(prior_k.log(), row[None])[0]
                nats, count = nats - float(mixed_t[mask].sum()), count + int(mask.sum())
                if self._updating:
                    posterior_k = (prior_k.log() + row.sum(0)).softmax(0)
                    prior_k = (1 - RATE) * prior_k + RATE * posterior_k
        return nats / count

    def log_probs(self, tokens_bt: Tensor, targets_bt: Tensor) -> Tensor:
        return self.target_scores(tokens_bt, targets_bt).log_probs

    def target_scores(self, tokens_bt: Tensor, targets_bt: Tensor) -> TargetScores:
        """Return scores under the given prior: a score does not depend on the rows before it."""
        mixed_btv = self._mixture(tokens_bt)
        chosen = mixed_btv.gather(-1, targets_bt.to(self.device)[..., None])[..., 0]
        return TargetScores(chosen.float(), chosen >= mixed_btv.amax(-1))

    def branch_scores(self, tokens_bt: Tensor, branches: Branches, targets_n: Tensor) -> TargetScores:
        raise AssertionError("an ensemble takes one text in a row")

    def last_logits(self, tokens: list[int], cache: KVCache | None = None) -> Tensor:
        """Return the log-probabilities of the token after `tokens`."""
        if cache is None:
            return self._mixture(torch.tensor([tokens]))[0, -1].float()
        assert isinstance(cache, EnsembleCache)
        new = tokens[cache.length :]
        known = cache.predicted_kv
        logits = [each.new_logits(tokens, one) for each, one in zip(self.experts, cache.caches, strict=True)]
        probs_tkv = torch.stack([each.double().log_softmax(-1) for each in logits], dim=1)
        before_tkv = probs_tkv[:-1] if known is None else torch.cat((known[None], probs_tkv[:-1]))
        read = torch.tensor(new if known is not None else new[1:], device=self.device, dtype=torch.long)
        evidence_k = before_tkv.gather(-1, read[:, None, None].expand(-1, len(self.experts), 1))[..., 0].sum(0)
        cache.evidence_k = evidence_k if cache.evidence_k is None else cache.evidence_k + evidence_k
        cache.predicted_kv = probs_tkv[-1]
        cache.length = len(tokens)
        weights_k = (self._prior_k.log() + cache.evidence_k).log_softmax(0)
        return (weights_k[:, None] + probs_tkv[-1]).logsumexp(0).float()

    def new_cache(self, tokens: int) -> KVCache | None:
        caches = [each.new_cache(tokens) for each in self.experts]
        return EnsembleCache([each for each in caches if each is not None]) if all(caches) else None

    @property
    def share(self) -> DataShare:
        return DataShare()

    @property
    def batch_tokens(self) -> int:
        return max(1, self.experts[0].batch_tokens // len(self.experts))

    @property
    def packed_rows(self) -> RowLengths | None:
        return None

    def row_length(self, tokens: int) -> int:
        return min(self.window, self.experts[0].row_length(tokens))

    def add_up(self, values: Tensor) -> Tensor:
        return values

    def _mixture(self, tokens_bt: Tensor) -> Tensor:
        """Return the log-probabilities (B, T, V) of the token after each position."""
        tokens_bt = tokens_bt.to(self.device)
        probs_kbtv = torch.stack([each.all_logits(tokens_bt).double().log_softmax(-1) for each in self.experts])
        following = tokens_bt[None, :, 1:, None].expand(len(self.experts), -1, -1, 1)
        read_btk = probs_kbtv[:, :, :-1].gather(-1, following)[..., 0].movedim(0, -1)
        weights_btk = _weights(self._prior_k.log(), torch.nn.functional.pad(read_btk, (0, 0, 0, 1)))
        return (weights_btk.movedim(-1, 0)[..., None] + probs_kbtv).logsumexp(0)


def _weights(log_prior_k: Tensor, probs_btk: Tensor) -> Tensor:
    """Return the log-posterior before each position, from the experts' log-probabilities of the tokens before it."""
    evidence_btk = probs_btk.cumsum(1) - probs_btk
    weights: Tensor = (log_prior_k + evidence_btk).log_softmax(-1)
    return weights


def _mix(log_prior_k: Tensor, probs_btk: Tensor) -> Tensor:
    """Return the mixture's log-probability of each token from those of the experts."""
    mixed: Tensor = (_weights(log_prior_k, probs_btk) + probs_btk).logsumexp(-1)
    return mixed


def window_log_likelihoods(model: Any, batches: Iterable[Batch | Tensor]) -> Tensor:
    """Return the log-probability that a model gives to each window of text, in float64 on the CPU."""
    sums = []
    for rows in batches:
        batch = as_batch(rows)
        tokens, targets = batch.tokens, batch.targets
        probs = model.log_probs(tokens, targets.clamp(min=0)).double().cpu()
        sums.append(torch.where(targets.cpu() >= 0, probs, 0.0).sum(1))
    return torch.cat(sums)
