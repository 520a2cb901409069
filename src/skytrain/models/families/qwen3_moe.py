"""Qwen 3 with a mixture of experts: scores of a token's experts are normalized or not, and first layers may be dense."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ...config import DecoderConfig
from . import qwen3
from ._experts import EXPERT_MODULES, PLAIN, balance_loss, experts_of, needs_experts, read_dense_layers
from ._family import SILU, ModelFamily, refuse
from ._rotary import read_rotary, write_rotary


def read(data: Mapping[str, Any]) -> dict[str, Any]:
    refuse(data, hidden_act=SILU)
    plain = read_rotary(data)
    experts = {
        "count": data["num_experts"],
        "per_token": data["num_experts_per_tok"],
        "width": data["moe_intermediate_size"],
        "dense_layers": read_dense_layers(data["mlp_only_layers"] or [], data["decoder_sparse_step"], plain["layers"]),
        "normalize": data["norm_topk_prob"],
        "balance_loss": balance_loss(data),
    }
    window = data["sliding_window"] if data["use_sliding_window"] else None
    return {**plain, "window": window, "experts": {**PLAIN, **experts}}


def write(config: DecoderConfig) -> dict[str, Any]:
    experts = experts_of(config)
    return {
        **write_rotary(config),
        "use_sliding_window": config.window is not None,
        "sliding_window": config.window,
        "num_experts": experts.count,
        "num_experts_per_tok": experts.per_token,
        "moe_intermediate_size": experts.width,
        "mlp_only_layers": list(range(experts.dense_layers)),
        "decoder_sparse_step": 1,
        "norm_topk_prob": experts.normalize,
        "router_aux_loss_coef": experts.balance_loss,
    }


FAMILY = ModelFamily(
    name="qwen3_moe",
    architecture="Qwen3MoeForCausalLM",
    defaults={
        "vocab_size": 151936,
        "hidden_size": 2048,
        "intermediate_size": 6144,
        "num_hidden_layers": 24,
        "num_attention_heads": 32,
        "num_key_value_heads": 4,
        "hidden_act": "silu",
        "max_position_embeddings": 32768,
        "rms_norm_eps": 1e-6,
        "tie_word_embeddings": False,
        "attention_bias": False,
        "use_sliding_window": False,
        "sliding_window": 4096,
        "decoder_sparse_step": 1,
        "moe_intermediate_size": 768,
        "num_experts_per_tok": 8,
        "num_experts": 128,
        "norm_topk_prob": False,
        "router_aux_loss_coef": 0.001,
        "mlp_only_layers": None,
    },
    read=read,
    write=write,
    modules={**qwen3.FAMILY.modules, **EXPERT_MODULES},
    aliases={"num_local_experts": "num_experts"},
    export_problem=needs_experts,
)
