"""Gemma 2: norms before and after each part, soft-capped scores and logits, a window in every other layer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ...config import DecoderConfig
from ._family import ModelFamily, refuse
from ._rotary import LLAMA_MODULES, layer_types, read_rotary, read_windows, whole_heads, write_rotary


def read(data: Mapping[str, Any]) -> dict[str, Any]:
    refuse(data, hidden_activation="gelu_pytorch_tanh", use_bidirectional_attention=(None, False))
    plain = read_rotary(data)
    kinds = data["layer_types"] or [
        ("sliding_attention", "full_attention")[layer % 2] for layer in range(plain["layers"])
    ]
    return {
        **plain,
        **read_windows(kinds, data["sliding_window"]),
        "attention_scale": data["query_pre_attn_scalar"] ** -0.5,
        "attention_softcap": data["attn_logit_softcapping"],
        "logit_softcap": data["final_logit_softcapping"],
    }


def write(config: DecoderConfig) -> dict[str, Any]:
    scalar = config.head_width if config.attention_scale is None else config.attention_scale**-2
    return {
        **write_rotary(config),
        "hidden_act": "gelu_pytorch_tanh",
        "hidden_activation": "gelu_pytorch_tanh",
        "query_pre_attn_scalar": round(scalar),  # Gemma2Config takes whole numbers only
        "sliding_window": config.window,
        "layer_types": layer_types(config),
        "attn_logit_softcapping": config.attention_softcap,
        "final_logit_softcapping": config.logit_softcap,
    }


def export_problem(config: DecoderConfig) -> tuple[str, str] | None:
    if config.window is None:
        return "model.window", "null has no form in Hugging Face's"
    return whole_heads(config)


FAMILY = ModelFamily(
    name="gemma2",
    architecture="Gemma2ForCausalLM",
    defaults={
        "vocab_size": 256000,
        "hidden_size": 2304,
        "intermediate_size": 9216,
        "num_hidden_layers": 26,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "head_dim": 256,
        "hidden_activation": "gelu_pytorch_tanh",
        "max_position_embeddings": 8192,
        "rms_norm_eps": 1e-6,
        "attention_bias": False,
        "query_pre_attn_scalar": 256,
        "sliding_window": 4096,
        "layer_types": None,
        "attn_logit_softcapping": 50.0,
        "final_logit_softcapping": 30.0,
        "use_bidirectional_attention": None,
        "tie_word_embeddings": True,
    },
    read=read,
    write=write,
    modules={
        **LLAMA_MODULES,
        "blocks.{}.attention_post_norm": "model.layers.{}.post_attention_layernorm",
        "blocks.{}.mlp_norm": "model.layers.{}.pre_feedforward_layernorm",
        "blocks.{}.mlp_post_norm": "model.layers.{}.post_feedforward_layernorm",
    },
    export_problem=export_problem,
)
