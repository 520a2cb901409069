"""The optimizer that a configuration asks for, over the parameters of a model."""

from __future__ import annotations

import inspect

import torch
from torch import nn

from ...config import ConfigError, OptimizerConfig, load_class, make
from .groups import BaseSettings, groups_with_matrices_apart, parameter_groups


def make_optimizer(model: nn.Module, config: OptimizerConfig, *, fused: bool) -> torch.optim.Optimizer:
    """Build the configured optimizer; `fused` asks for the fused kernel of one that has it."""
    arguments = dict(config.arguments())
    group_parameters = groups_with_matrices_apart if config.facts.whole_matrices else parameter_groups
    base = BaseSettings(
        lr=config.lr, weight_decay=config.weight_decay, eps=arguments.get("eps"), lr_by_kind=config.rates()
    )
    groups = group_parameters(model, base)
    if config.facts.fused:
        arguments["fused"] = fused
    _check_class(config)
    optimizer: torch.optim.Optimizer = make(
        config.class_path(), arguments, key="optimizer", params=groups, lr=config.lr
    )
    return optimizer


def _check_class(config: OptimizerConfig) -> None:
    found = load_class(config.class_path(), "optimizer.target")
    if not isinstance(found, type) or not issubclass(found, torch.optim.Optimizer):
        raise ConfigError("optimizer.target", f"{config.class_path()} is not a torch.optim.Optimizer")
    parameters = inspect.signature(found).parameters.values()
    decays = any(each.name == "weight_decay" or each.kind is each.VAR_KEYWORD for each in parameters)
    if config.name == "custom" and config.weight_decay and not decays:
        raise ConfigError(
            "optimizer.weight_decay",
            f"{config.weight_decay:g}: {config.class_path()} has no argument weight_decay",
            hint="set optimizer.weight_decay=0",
        )
