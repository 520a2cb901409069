"""EXAONE 3.5: Llama's arithmetic under other names.

Its code comes with the published models and does not run with transformers 5, so it is read here and exported as Llama.
The defaults are those of that code.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ._family import SILU, ModelFamily, need, refuse
from ._rotary import read_rotary


def read(data: Mapping[str, Any]) -> dict[str, Any]:
    refuse(data, activation_function=SILU)
    renamed = {"num_hidden_layers": data["num_layers"], "rms_norm_eps": data["layer_norm_epsilon"]}
    width = data["intermediate_size"] or 4 * need(data, "hidden_size")
    return read_rotary({**data, **renamed, "intermediate_size": width})


FAMILY = ModelFamily(
    name="exaone",
    architecture="ExaoneForCausalLM",
    defaults={
        "vocab_size": 102400,
        "hidden_size": 2048,
        "intermediate_size": None,
        "num_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": None,
        "activation_function": "silu",
        "max_position_embeddings": 2048,
        "layer_norm_epsilon": 1e-5,
        "tie_word_embeddings": True,
    },
    read=read,
    write=None,
    modules={
        "embedding.tokens": "transformer.wte",
        "blocks.{}.attention_norm": "transformer.h.{}.ln_1",
        "blocks.{}.attention.qkv": (
            "transformer.h.{}.attn.attention.q_proj",
            "transformer.h.{}.attn.attention.k_proj",
            "transformer.h.{}.attn.attention.v_proj",
        ),
        "blocks.{}.attention.out": "transformer.h.{}.attn.attention.out_proj",
        "blocks.{}.mlp_norm": "transformer.h.{}.ln_2",
        "blocks.{}.mlp.gate": "transformer.h.{}.mlp.c_fc_0",
        "blocks.{}.mlp.up": "transformer.h.{}.mlp.c_fc_1",
        "blocks.{}.mlp.down": "transformer.h.{}.mlp.c_proj",
        "head.norm": "transformer.ln_f",
        "head.projection": "lm_head",
    },
    prefix="transformer.",
    aliases={"num_hidden_layers": "num_layers"},
    export_as="llama",
)
