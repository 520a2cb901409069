"""Which parameters share an optimizer's settings: matrices decay, vectors do not, and widths scale learning rates."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import nn

from ...config import has_layers
from ...models import UpdateScales, update_scales

HIDDEN_MATRICES = "hidden_matrices"  # key that marks their group


@dataclass(frozen=True)
class BaseSettings:
    """The settings of the base model; the decoder's parametrization scales them for each parameter."""

    lr: float
    weight_decay: float
    eps: float | None = None  # None: the optimizer has none
    lr_by_kind: Mapping[str, float] = field(default_factory=dict)  # of `embedding`, `head` and `vector`; else `lr`


def parameter_groups(model: nn.Module, base: BaseSettings, only: set[str] | None = None) -> list[dict[str, Any]]:
    """Return one group of parameters for each combination of settings.

    Weights of two or more dimensions decay; biases and norms do not.
    """
    tables = {id(module.weight) for module in model.modules() if isinstance(module, nn.Embedding)}
    hidden = hidden_matrices(model)
    groups: dict[tuple[float, float, float], dict[str, Any]] = {}
    for name, parameter in model.named_parameters():
        if not parameter.requires_grad or (only is not None and name not in only):
            continue
        scales = _scales(model, name, parameter)
        matrix = is_matrix(name, parameter)
        decay = base.weight_decay * scales.weight_decay if matrix else 0.0
        kind = "vector" if not matrix else "embedding" if id(parameter) in tables else "head"
        rate = base.lr if name in hidden else base.lr_by_kind.get(kind, base.lr)
        settings: dict[str, Any] = {"params": [], "weight_decay": decay, "lr": rate * scales.lr}
        if base.eps is not None:
            settings["eps"] = base.eps * scales.eps
        group = groups.setdefault((decay, settings["lr"], scales.eps), settings)
        group["params"].append(parameter)
    return sorted(groups.values(), key=lambda group: -group["weight_decay"])


def _scales(model: nn.Module, name: str, parameter: nn.Parameter) -> UpdateScales:
    config = getattr(model, "config", None)
    return update_scales(config, name, matrix=is_matrix(name, parameter)) if has_layers(config) else UpdateScales()


def is_matrix(name: str, parameter: nn.Parameter) -> bool:
    """Return whether a parameter is a matrix, or one for each expert; experts' biases are vectors, though one tensor."""
    return parameter.ndim >= 2 and not name.endswith(".bias")


def groups_with_matrices_apart(model: nn.Module, base: BaseSettings) -> list[dict[str, Any]]:
    """Return the groups of `parameter_groups`, but with the hidden matrices in a first group, marked `hidden_matrices`.

    That group has the base model's learning rate and decay: an optimizer that treats matrices as matrices makes steps of the
    same size at any width, so the parametrization's smaller rates are not for it.
    """
    hidden = hidden_matrices(model)
    matrices = [parameter for name, parameter in model.named_parameters() if name in hidden and parameter.requires_grad]
    others = {name for name, _ in model.named_parameters()} - hidden
    groups = parameter_groups(model, base, only=others)
    if not matrices:  # a plugged-in model may have none between embedding and head
        return groups
    return [{"params": matrices, "weight_decay": base.weight_decay, "lr": base.lr, HIDDEN_MATRICES: True}, *groups]


def hidden_matrices(model: nn.Module) -> set[str]:
    """Return the names of the weights of linear layers other than the head, and of those that hold one for each expert.

    A head shares its weight with an embedding, or has the height of the vocabulary.
    """
    config = getattr(model, "config", None)
    if has_layers(config):
        return {
            name
            for name, parameter in model.named_parameters()
            if name.startswith("blocks.") and is_matrix(name, parameter)
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
