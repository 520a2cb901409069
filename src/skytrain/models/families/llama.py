"""Llama 2 and 3, and models that share their architecture: SOLAR, KULLM3."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ._family import SILU, ModelFamily, refuse
from ._rotary import LLAMA_MODULES, read_rotary, whole_heads, write_rotary


def read(data: Mapping[str, Any]) -> dict[str, Any]:
    refuse(data, hidden_act=SILU)
    return read_rotary(data)


FAMILY = ModelFamily(
    name="llama",
    architecture="LlamaForCausalLM",
    defaults={
        "vocab_size": 32000,
        "hidden_size": 4096,
        "intermediate_size": 11008,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": None,
        "head_dim": None,
        "hidden_act": "silu",
        "max_position_embeddings": 2048,
        "rms_norm_eps": 1e-6,
        "attention_bias": False,
        "mlp_bias": False,
        "tie_word_embeddings": False,
    },
    read=read,
    write=write_rotary,
    modules=LLAMA_MODULES,
    export_problem=whole_heads,
)
