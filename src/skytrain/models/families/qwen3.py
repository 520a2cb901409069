"""Qwen 3, dense: Qwen 2 without biases, with normalized queries and keys."""

from __future__ import annotations

from . import qwen2
from ._family import ModelFamily

FAMILY = ModelFamily(
    name="qwen3",
    architecture="Qwen3ForCausalLM",
    defaults={**qwen2.FAMILY.defaults, "head_dim": 128, "attention_bias": False},
    read=qwen2.read,
    write=qwen2.write,
    modules={
        **qwen2.FAMILY.modules,
        "blocks.{}.attention.q_norm": "model.layers.{}.self_attn.q_norm",
        "blocks.{}.attention.k_norm": "model.layers.{}.self_attn.k_norm",
    },
)
