"""OLMoE: a mixture of experts in every layer, queries and keys normalized over all heads."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ...config import DecoderConfig
from . import qwen3
from ._experts import EXPERT_MODULES, PLAIN, balance_loss, experts_of, needs_experts
from ._family import SILU, ModelFamily, refuse
from ._rotary import read_rotary, whole_heads, write_rotary


def read(data: Mapping[str, Any]) -> dict[str, Any]:
    refuse(data, hidden_act=SILU, clip_qkv=None)
    experts = {
        "count": data["num_experts"],
        "per_token": data["num_experts_per_tok"],
        "width": data["intermediate_size"],
        "normalize": data["norm_topk_prob"],
        "balance_loss": balance_loss(data),
    }
    return {**read_rotary(data), "experts": {**PLAIN, **experts}}


def write(config: DecoderConfig) -> dict[str, Any]:
    experts = experts_of(config)
    return {
        **write_rotary(config),
        "intermediate_size": experts.width,
        "num_experts": experts.count,
        "num_experts_per_tok": experts.per_token,
        "norm_topk_prob": experts.normalize,
        "router_aux_loss_coef": experts.balance_loss,
    }


def export_problem(config: DecoderConfig) -> tuple[str, str] | None:
    if config.head_width * config.heads != config.width:
        return "model.head_size", f"{config.head_width} is not width / heads, and has no form in Hugging Face's"
    return needs_experts(config) or whole_heads(config)


FAMILY = ModelFamily(
    name="olmoe",
    architecture="OlmoeForCausalLM",
    defaults={
        "vocab_size": 50304,
        "hidden_size": 2048,
        "intermediate_size": 2048,
        "num_hidden_layers": 16,
        "num_attention_heads": 16,
        "num_key_value_heads": None,
        "hidden_act": "silu",
        "max_position_embeddings": 4096,
        "rms_norm_eps": 1e-5,
        "tie_word_embeddings": False,
        "attention_bias": False,
        "clip_qkv": None,
        "num_experts_per_tok": 8,
        "num_experts": 64,
        "router_aux_loss_coef": 0.01,
        "norm_topk_prob": False,
    },
    read=read,
    write=write,
    modules={**qwen3.FAMILY.modules, **EXPERT_MODULES},
    aliases={"num_local_experts": "num_experts"},
    export_problem=export_problem,
)
