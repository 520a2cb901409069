"""The loss and the FLOPs of any model that follows the contract: the model's own where it has one, a plain fallback otherwise."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn

from ..planning.flops import training_flops_per_token


def token_loss(logits_btv: Tensor, targets_bt: Tensor) -> Tensor:
    """Mean cross-entropy in nats, in float32 whatever the logits are; targets of -100 do not count."""
    return F.cross_entropy(logits_btv.flatten(0, -2).float(), targets_bt.flatten())


def lm_loss(model: nn.Module, tokens_bt: Tensor, targets_bt: Tensor) -> Tensor:
    """The model's own `loss(tokens, targets)` where it has one, else the cross-entropy of its logits."""
    own = getattr(model, "loss", None)
    return own(tokens_bt, targets_bt) if callable(own) else token_loss(model(tokens_bt), targets_bt)


def flops_per_token(model: nn.Module, sequence_length: int) -> int:
    """The model's own `flops_per_token(sequence_length)` where it has one, else 6 for each weight that is a matrix.

    The fallback knows neither attention nor which tables are only looked up; an `nn.Embedding` that no other module
    shares is left out. A model that wants a true MFU says its own.
    """
    own = getattr(model, "flops_per_token", None)
    return int(own(sequence_length)) if callable(own) else training_flops_per_token(matmul_parameters(model), 0, 0, [])


def matmul_parameters(model: nn.Module) -> int:
    """Weights that are matrices, but for tables that are only looked up."""
    lookups = {id(module.weight) for module in model.modules() if isinstance(module, nn.Embedding)}
    products = {id(module.weight) for module in model.modules() if isinstance(module, nn.Linear)}
    weights = [p for p in model.parameters() if p.ndim >= 2 and (id(p) not in lookups or id(p) in products)]
    return sum(p.numel() for p in weights)
