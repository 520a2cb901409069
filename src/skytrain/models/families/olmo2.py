"""OLMo 2: norms after attention and MLP instead of before, queries and keys normalized over all heads."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ._family import SILU, ModelFamily, refuse
from ._rotary import LLAMA_MODULES, read_rotary, write_rotary


def read(data: Mapping[str, Any]) -> dict[str, Any]:
    refuse(data, hidden_act=SILU)
    return read_rotary(data)


PRE_NORMS = ("blocks.{}.attention_norm", "blocks.{}.mlp_norm")
FAMILY = ModelFamily(
    name="olmo2",
    architecture="Olmo2ForCausalLM",
    defaults={
        "vocab_size": 50304,
        "hidden_size": 4096,
        "intermediate_size": 11008,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": None,
        "hidden_act": "silu",
        "max_position_embeddings": 2048,
        "tie_word_embeddings": False,
        "attention_bias": False,
        "rms_norm_eps": 1e-5,
    },
    read=read,
    write=write_rotary,
    modules={
        **{ours: theirs for ours, theirs in LLAMA_MODULES.items() if ours not in PRE_NORMS},
        "blocks.{}.attention.q_norm": "model.layers.{}.self_attn.q_norm",
        "blocks.{}.attention.k_norm": "model.layers.{}.self_attn.k_norm",
        "blocks.{}.attention_post_norm": "model.layers.{}.post_attention_layernorm",
        "blocks.{}.mlp_post_norm": "model.layers.{}.post_feedforward_layernorm",
    },
)
