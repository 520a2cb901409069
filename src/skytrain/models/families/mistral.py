"""Mistral: Llama's parts, and in the first version a sliding window in every layer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ...config import DecoderConfig
from ._family import SILU, ModelFamily, refuse
from ._rotary import LLAMA_MODULES, read_rotary, write_rotary


def read(data: Mapping[str, Any]) -> dict[str, Any]:
    refuse(data, hidden_act=SILU)
    return {**read_rotary(data), "window": data["sliding_window"]}


def write(config: DecoderConfig) -> dict[str, Any]:
    return {**write_rotary(config), "sliding_window": config.window}


FAMILY = ModelFamily(
    name="mistral",
    architecture="MistralForCausalLM",
    defaults={
        "vocab_size": 32000,
        "hidden_size": 4096,
        "intermediate_size": 14336,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "head_dim": None,
        "hidden_act": "silu",
        "max_position_embeddings": 131072,
        "rms_norm_eps": 1e-6,
        "sliding_window": 4096,
        "tie_word_embeddings": False,
    },
    read=read,
    write=write,
    modules=LLAMA_MODULES,
)
