"""Loss and FLOPs of any model that follows the model contract.

The model's own `loss` and `flops_per_token` are used if it defines them, otherwise a generic fallback.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from ..planning import training_flops_per_token
from ..tokens import IGNORED_TARGET

# The output of a block, or the loss or logits of a model; in training with the auxiliary loss of its blocks (such as the
# balance of a router) where they have one. It is a mean over tokens, and is averaged over micro-batches and ranks alike.
WithAuxiliary = Tensor | tuple[Tensor, Tensor]


@dataclass(frozen=True)
class LossSettings:
    """The settings of a model's own `loss` in training."""

    z_loss: float = 0.0  # weight of the mean squared log-partition function, which keeps logits from drifting
    chunk_tokens: int | None = None  # tokens whose logits are in memory at a time; None: all of them


def token_loss(logits_btv: Tensor, targets_bt: Tensor, z_loss: float = 0.0) -> Tensor:
    """Return the mean cross-entropy in nats, computed in float32; targets of -100 are ignored."""
    if z_loss:
        return _summed_loss(logits_btv, targets_bt, z_loss) / count_targets(targets_bt).clamp(min=1)
    return F.cross_entropy(logits_btv.flatten(0, -2).float(), targets_bt.flatten())


def head_loss(
    head: Callable[[Tensor], Tensor], x_btd: Tensor, targets_bt: Tensor, settings: LossSettings, training: bool
) -> Tensor:
    """Compute the loss from the input of the head; the z-loss is added in training only."""
    z_loss = settings.z_loss if training else 0.0
    if settings.chunk_tokens is None:
        return token_loss(head(x_btd), targets_bt, z_loss)
    return chunked_loss(head, x_btd, targets_bt, settings.chunk_tokens, z_loss)


def chunked_loss(
    head: Callable[[Tensor], Tensor], x_btd: Tensor, targets_bt: Tensor, chunk_tokens: int, z_loss: float = 0.0
) -> Tensor:
    """Compute the same loss as `token_loss` from the input of the head, `chunk_tokens` tokens at a time.

    Logits are the largest tensor of a small model. Each chunk's logits are freed after use and recomputed in the
    backward pass: this costs one more matrix product with the head, and memory for logits does not grow with the batch.
    """

    def chunk(x_nd: Tensor, targets_n: Tensor) -> Tensor:
        return _summed_loss(head(x_nd[None])[0], targets_n, z_loss)

    total = x_btd.new_zeros((), dtype=torch.float32)
    rows = x_btd.flatten(0, 1)
    targets = targets_bt.flatten()
    for x_nd, targets_n in zip(rows.split(chunk_tokens), targets.split(chunk_tokens), strict=True):
        total = total + checkpoint(chunk, x_nd, targets_n, use_reentrant=False)
    return total / count_targets(targets).clamp(min=1)


def _summed_loss(logits: Tensor, targets: Tensor, z_loss: float) -> Tensor:
    logits, targets = logits.flatten(0, -2).float(), targets.flatten()
    loss = F.cross_entropy(logits, targets, reduction="sum")
    if z_loss:
        loss = loss + z_loss * (logits.logsumexp(-1).square() * (targets != IGNORED_TARGET)).sum()
    return loss


def count_targets(targets: Tensor) -> Tensor:
    """Count the targets that are not -100."""
    return (targets != IGNORED_TARGET).sum()


def weighted(loss: Tensor, weight: Tensor, targets: Tensor) -> Tensor:
    """Return the mean loss of some targets times a weight; 0 where none of them counts and the mean is 0 / 0."""
    return torch.where(count_targets(targets) > 0, loss, torch.zeros_like(loss)) * weight


def lm_loss(
    model: nn.Module, tokens_bt: Tensor, targets_bt: Tensor, document_starts_bt: Tensor | None = None
) -> WithAuxiliary:
    """Return the model's own `loss(tokens, targets)` if it defines one, else the cross-entropy of its logits.

    `document_starts_bt` is passed on as the third argument where documents are separated.
    """
    own = getattr(model, "loss", None)
    starts = () if document_starts_bt is None else (document_starts_bt,)
    if callable(own):
        return own(tokens_bt, targets_bt, *starts)
    return token_loss(model(tokens_bt, *starts), targets_bt)


def split_auxiliary(output: WithAuxiliary) -> tuple[Tensor, Tensor | None]:
    """Return what a block or a model computed, and the auxiliary loss that it returned with it, if any."""
    return output if isinstance(output, tuple) else (output, None)


def join_auxiliary(output: Tensor, auxiliary: Tensor | None) -> WithAuxiliary:
    """Return the pair that `split_auxiliary` splits, or only the output where there is no auxiliary loss."""
    return output if auxiliary is None else (output, auxiliary)


def flops_per_token(model: nn.Module, sequence_length: int) -> int:
    """Return the model's own `flops_per_token(sequence_length)` if it defines one, else 6 per matrix weight.

    The fallback does not count attention, and of lookup tables it excludes only an `nn.Embedding` that no `nn.Linear`
    shares. Define `flops_per_token` on the model for an accurate MFU.
    """
    own = getattr(model, "flops_per_token", None)
    return int(own(sequence_length)) if callable(own) else training_flops_per_token(matmul_parameters(model), 0, 0, [])


def matmul_parameters(model: nn.Module) -> int:
    """Count the weights used in matrix products: all matrices except embeddings that no linear layer shares."""
    lookups = {id(module.weight) for module in model.modules() if isinstance(module, nn.Embedding)}
    products = {id(module.weight) for module in model.modules() if isinstance(module, nn.Linear)}
    weights = [p for p in model.parameters() if p.ndim >= 2 and (id(p) not in lookups or id(p) in products)]
    return sum(p.numel() for p in weights)
