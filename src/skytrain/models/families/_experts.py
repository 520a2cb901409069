"""What families with a mixture of experts share: module names, and experts in config.json. No torch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ...config import DecoderConfig, ExpertsConfig
from ._family import ModuleNames, UnsupportedArchitecture
from ._rotary import LLAMA_MODULES

# `{expert}` stands for each of the experts, which published files keep as matrices of their own.
EXPERT_MODULES: ModuleNames = {
    **LLAMA_MODULES,
    "blocks.{}.mixture.router": "model.layers.{}.mlp.gate",
    "blocks.{}.mixture.experts.gate": "model.layers.{}.mlp.experts.{expert}.gate_proj",
    "blocks.{}.mixture.experts.up": "model.layers.{}.mlp.experts.{expert}.up_proj",
    "blocks.{}.mixture.experts.down": "model.layers.{}.mlp.experts.{expert}.down_proj",
}
# Softmax over all experts, without groups, bias or shared expert, and not balanced by more than a loss.
PLAIN: dict[str, Any] = {
    "shared_width": None,
    "dense_layers": 0,
    "scores": "softmax",
    "normalize": True,
    "scale": 1.0,
    "groups": 1,
    "groups_per_token": 1,
    "bias": False,
    "bias_rate": 0.0,
    "z_loss": 0.0,
}


def experts_of(config: DecoderConfig) -> ExpertsConfig:
    assert config.experts is not None, "a family of mixtures writes only decoders with experts"
    return config.experts


def needs_experts(config: DecoderConfig) -> tuple[str, str] | None:
    """Return an `export_problem` for a decoder without experts."""
    return ("model.experts", "null has no form in Hugging Face's") if config.experts is None else None


def read_dense_layers(layers: list[int], every: int, count: int) -> int:
    """Return how many layers, from the first, are dense, given which are and that of the others each `every`-th is not."""
    dense = [layer in layers or (layer + 1) % every != 0 for layer in range(count)]
    first = dense.index(False) if False in dense else count
    if any(dense[first:]) or first == count:
        raise UnsupportedArchitecture("config.json: dense layers are supported only before those with experts")
    return first


def balance_loss(data: Mapping[str, Any]) -> float:
    return float(data["router_aux_loss_coef"])
