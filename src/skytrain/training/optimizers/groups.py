"""Which parameters share an optimizer's settings: matrices decay, vectors do not, and widths scale learning rates."""

from __future__ import annotations

from typing import Any

from torch import nn

from ...config import has_layers
from ...models import UpdateScales, update_scales

HIDDEN_MATRICES = "hidden_matrices"  # key that marks their group


def parameter_groups(
    model: nn.Module, lr: float, weight_decay: float, eps: float | None = None, only: set[str] | None = None
) -> list[dict[str, Any]]:
    """Return one group of parameters for each combination of settings.

    Weights of two or more dimensions decay; biases and norms do not. `lr`, `weight_decay` and `eps` are those of the
    base model; the decoder's parametrization scales them for each parameter.
    """
    groups: dict[tuple[float, float, float], dict[str, Any]] = {}
    for name, parameter in model.named_parameters():
        if not parameter.requires_grad or (only is not None and name not in only):
            continue
        scales = _scales(model, name, parameter)
        decay = weight_decay * scales.weight_decay if parameter.ndim >= 2 else 0.0
        settings: dict[str, Any] = {"params": [], "weight_decay": decay, "lr": lr * scales.lr}
        if eps is not None:
            settings["eps"] = eps * scales.eps
        group = groups.setdefault((decay, settings["lr"], scales.eps), settings)
        group["params"].append(parameter)
    return sorted(groups.values(), key=lambda group: -group["weight_decay"])


def _scales(model: nn.Module, name: str, parameter: nn.Parameter) -> UpdateScales:
    config = getattr(model, "config", None)
    return update_scales(config, name, parameter.ndim) if has_layers(config) else UpdateScales()


def groups_with_matrices_apart(
    model: nn.Module, lr: float, weight_decay: float, eps: float | None = None
) -> list[dict[str, Any]]:
    """Return the groups of `parameter_groups`, but with the hidden matrices in a first group, marked `hidden_matrices`.

    That group has the base model's learning rate and decay: an optimizer that treats matrices as matrices makes steps of the
    same size at any width, so the parametrization's smaller rates are not for it.
    """
    hidden = hidden_matrices(model)
    matrices = [parameter for name, parameter in model.named_parameters() if name in hidden and parameter.requires_grad]
    others = {name for name, _ in model.named_parameters()} - hidden
    groups = parameter_groups(model, lr, weight_decay, eps, only=others)
    if not matrices:  # a plugged-in model may have none between embedding and head
        return groups
    return [{"params": matrices, "weight_decay": weight_decay, "lr": lr, HIDDEN_MATRICES: True}, *groups]


def hidden_matrices(model: nn.Module) -> set[str]:
    """Return the names of the weights of linear layers other than the head.

    A head shares its weight with an embedding, or has the height of the vocabulary.
    """
    config = getattr(model, "config", None)
    if has_layers(config):
        return {
            name for name, parameter in model.named_parameters() if name.startswith("blocks.") and parameter.ndim == 2
        }
    tables = {id(module.weight) for module in model.modules() if isinstance(module, nn.Embedding)}
    heights = {module.num_embeddings for module in model.modules() if isinstance(module, nn.Embedding)}
    layers = {id(module.weight) for module in model.modules() if isinstance(module, nn.Linear)}
    kept = layers - tables
    return {
        name
        for name, parameter in model.named_parameters()
        if id(parameter) in kept and parameter.size(0) not in heights
    }
