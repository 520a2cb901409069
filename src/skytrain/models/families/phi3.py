"""Phi-3 and Phi-4: Llama's parts, with q, k, v in one matrix and gate and up in another."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ...config import DecoderConfig
from ._family import SILU, ModelFamily, UnsupportedArchitecture, refuse
from ._rotary import LLAMA_MODULES, read_rotary, write_rotary


def read(data: Mapping[str, Any]) -> dict[str, Any]:
    refuse(data, hidden_act=SILU)
    plain = read_rotary(data)
    if plain["rope_scaling"] is not None:  # transformers has LongRoPE only, and takes YaRN for it
        raise UnsupportedArchitecture("config.json: extended rotary positions of Phi-3 are not supported")
    return {**plain, "window": data["sliding_window"], "dropout": data["resid_pdrop"]}


def write(config: DecoderConfig) -> dict[str, Any]:
    return {
        **write_rotary(config),
        "sliding_window": config.window,
        "resid_pdrop": config.dropout,
        "embd_pdrop": config.dropout,
        "attention_dropout": config.dropout,
    }


SPLIT = ("blocks.{}.mlp.gate", "blocks.{}.mlp.up")
FAMILY = ModelFamily(
    name="phi3",
    architecture="Phi3ForCausalLM",
    defaults={
        "vocab_size": 32064,
        "hidden_size": 3072,
        "intermediate_size": 8192,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": None,
        "resid_pdrop": 0.0,
        "hidden_act": "silu",
        "max_position_embeddings": 4096,
        "original_max_position_embeddings": 4096,
        "rms_norm_eps": 1e-5,
        "tie_word_embeddings": False,
        "sliding_window": None,
    },
    read=read,
    write=write,
    modules={
        **{ours: theirs for ours, theirs in LLAMA_MODULES.items() if ours not in SPLIT},
        "blocks.{}.attention.qkv": "model.layers.{}.self_attn.qkv_proj",
        SPLIT: "model.layers.{}.mlp.gate_up_proj",
    },
)
