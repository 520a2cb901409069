"""Parametrizations for Adam-like optimizers: standard, muP and CompleteP.

muP (Yang et al. 2022, arXiv 2203.03466) keeps the effect of one step on the activations independent of width, and
CompleteP (Dey et al. 2025, arXiv 2505.01618) of depth too, so that a learning rate tuned on a small model transfers to
a large one. With m = width / base_width and n = layers / base_layers:

                      standard                  muP                 CompleteP
hidden matrices       0.02, rate η, decay λ     0.02/√m, η/m, λm    as muP
out and down          0.02/√(2·layers)          as hidden           as hidden
tables, head          0.02, η, λ                the same            the same
vectors               η, no decay               the same            the same
attention scale       1/√head                   8/head              8/head
logits                1                         1/m                 1/m
residual branches     1                         1                   1/n
Adam's eps            ε                         ε/m                 ε/(m·n)

At the usual head size of 64 the attention scale equals the standard one. Weight decay grows as the learning rate
shrinks, because AdamW multiplies the two. The logit factor is applied before the head, so the head may be tied.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

import torch
from torch import Tensor

from ..config import DecoderConfig
from .families import FAMILIES

STD = 0.02  # GPT-2's
# Projections whose output is added to the residual stream.
RESIDUAL = (".attention.out.weight", ".mlp.down.weight", ".experts.down.weight", ".shared.down.weight")


@dataclass(frozen=True)
class Multipliers:
    """Multipliers in the forward pass."""

    attention_scale: float
    residual: float
    logits: float


@dataclass(frozen=True)
class UpdateScales:
    """Multipliers of the optimizer's settings for one parameter."""

    lr: float = 1.0
    weight_decay: float = 1.0
    eps: float = 1.0


def width_ratio(config: DecoderConfig) -> float:
    return 1.0 if config.parametrization == "standard" else config.width / (config.base_width or config.width)


def depth_ratio(config: DecoderConfig) -> float:
    return config.layers / (config.base_layers or config.layers) if config.parametrization == "completep" else 1.0


def multipliers(config: DecoderConfig) -> Multipliers:
    standard = config.attention_scale or config.head_width**-0.5
    attention = standard if config.parametrization == "standard" else standard * 8 * config.head_width**-0.5
    return Multipliers(attention, 1.0 / depth_ratio(config), 1.0 / width_ratio(config))


def initial_std(config: DecoderConfig, name: str) -> float:
    """Return the standard deviation of the initial values of the matrix `name`."""
    if config.parametrization == "standard":
        return STD / (2 * config.layers) ** 0.5 if name.endswith(RESIDUAL) else STD
    return STD / width_ratio(config) ** 0.5 if name.startswith("blocks.") else STD


def update_scales(config: DecoderConfig, name: str, *, matrix: bool) -> UpdateScales:
    """Return the optimizer multipliers for the parameter `name`, a matrix or a vector."""
    m = width_ratio(config)
    eps = 1.0 / (m * depth_ratio(config))
    return UpdateScales(1.0 / m, m, eps) if name.startswith("blocks.") and matrix else UpdateScales(eps=eps)


def folded_config(config: DecoderConfig) -> DecoderConfig:
    """Return the standard-parametrization configuration that is equivalent once the weights are folded."""
    experts = config.experts
    if experts is not None and not FAMILIES[config.family].scales_experts:
        experts = dataclasses.replace(experts, scale=1.0)
    return dataclasses.replace(config, parametrization="standard", base_width=None, base_layers=None, experts=experts)


@torch.no_grad()
def folded(config: DecoderConfig, name: str, value: Tensor) -> Tensor:
    """Fold the forward-pass multipliers into one parameter; unchanged where `folded_config` changes nothing."""
    form = folded_config(config)
    if form == config:
        return value
    if config.experts is not None and form.experts is not None and ".experts.down." in name:
        value = value * (config.experts.scale / form.experts.scale)
    factors = multipliers(config)
    attention = factors.attention_scale / multipliers(form).attention_scale
    if name.startswith("head.norm."):
        return _scaled(config, name, value, factors.logits)
    if _adds_to_stream(config, name):
        return _scaled(config, name, value, factors.residual)
    if ".attention.q_norm." in name:
        return _scaled(config, name, value, attention)
    if ".attention.q_up." in name:
        return value * attention
    if ".attention.qkv." in name and not config.qk_norm:
        each = config.heads // config.groups
        grouped = value.clone().view(config.groups, each + 2, config.head_width, *value.shape[1:])
        grouped[:, :each] *= attention  # the queries of each group
        return grouped.view(value.shape)
    return value


def _adds_to_stream(config: DecoderConfig, name: str) -> bool:
    """Return whether a parameter is in a residual branch's last module: the post-norm if any, else the projection."""
    last = (
        ("attention_post_norm", "mlp_post_norm")
        if config.post_norms
        else (
            "attention.out",
            "mlp.down",
            "experts.down",
            "shared.down",
        )
    )
    return name.rpartition(".")[0].endswith(last)


def _scaled(config: DecoderConfig, name: str, value: Tensor, factor: float) -> Tensor:
    if config.norm == "rmsnorm_plus_one" and "norm" in name:
        return (1.0 + value) * factor - 1.0
    return value * factor
