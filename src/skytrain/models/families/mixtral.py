"""Mixtral: Mistral with a mixture of experts in every layer; scores are normalized over a token's experts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ...config import DecoderConfig
from . import mistral
from ._experts import EXPERT_MODULES, PLAIN, balance_loss, experts_of, needs_experts
from ._family import ModelFamily, refuse


def read(data: Mapping[str, Any]) -> dict[str, Any]:
    refuse(data, router_jitter_noise=0.0)
    experts = {
        "count": data["num_local_experts"],
        "per_token": data["num_experts_per_tok"],
        "width": data["intermediate_size"],
        "balance_loss": balance_loss(data),
    }
    return {**mistral.read(data), "experts": {**PLAIN, **experts}}


def write(config: DecoderConfig) -> dict[str, Any]:
    experts = experts_of(config)
    return {
        **mistral.write(config),
        "intermediate_size": experts.width,
        "num_local_experts": experts.count,
        "num_experts_per_tok": experts.per_token,
        "router_aux_loss_coef": experts.balance_loss,
    }


EXPERT = "model.layers.{}.block_sparse_moe.experts.{expert}"
FAMILY = ModelFamily(
    name="mixtral",
    architecture="MixtralForCausalLM",
    defaults={
        **mistral.FAMILY.defaults,
        "rms_norm_eps": 1e-5,
        "rope_theta": 1e6,
        "sliding_window": None,
        "num_experts_per_tok": 2,
        "num_local_experts": 8,
        "router_aux_loss_coef": 0.001,
        "router_jitter_noise": 0.0,
    },
    read=read,
    write=write,
    # The names of the published files, which transformers reads and writes too.
    modules={
        **EXPERT_MODULES,
        "blocks.{}.mixture.router": "model.layers.{}.block_sparse_moe.gate",
        "blocks.{}.mixture.experts.gate": f"{EXPERT}.w1",
        "blocks.{}.mixture.experts.up": f"{EXPERT}.w3",
        "blocks.{}.mixture.experts.down": f"{EXPERT}.w2",
    },
    aliases={"num_experts": "num_local_experts"},
    export_problem=needs_experts,
)
