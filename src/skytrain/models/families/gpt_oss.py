"""gpt-oss: experts with biases and a clamped SwiGLU, attention sinks, a window in every other layer. Weights in bfloat16.

The weights that OpenAI published are quantized (MXFP4); copies in bfloat16 are on the hub.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from ...config import DecoderConfig
from ._experts import PLAIN, balance_loss, experts_of, needs_experts
from ._family import ModelFamily, refuse
from ._rotary import LLAMA_MODULES, layer_types, read_rotary, read_windows, write_rotary

# Where config.json has none.
WINDOW = 128
ROPE = {
    "rope_type": "yarn",
    "factor": 32.0,
    "beta_fast": 32.0,
    "beta_slow": 1.0,
    "truncate": False,
    "original_max_position_embeddings": 4096,
}


def read(data: Mapping[str, Any]) -> dict[str, Any]:
    refuse(data, attention_bias=True, hidden_act="silu")
    rope = data.get("rope_scaling") or data.get("rope_parameters") or ROPE
    # Its biases are those of model.bias=all.
    plain = read_rotary({**data, "rope_scaling": None, "rope_parameters": rope, "attention_bias": False})
    kinds = data["layer_types"] or [
        "full_attention" if layer % 2 else "sliding_attention" for layer in range(plain["layers"])
    ]
    experts = {
        "count": data["num_local_experts"],
        "per_token": data["num_experts_per_tok"],
        "width": data["intermediate_size"],
        "balance_loss": balance_loss(data),
    }
    return {
        **plain,
        **read_windows(kinds, data["sliding_window"]),
        "activation_clamp": data["swiglu_limit"],
        "activation_gain": data["swiglu_alpha"],
        "experts": {**PLAIN, **experts},
    }


def write(config: DecoderConfig) -> dict[str, Any]:
    experts = experts_of(config)
    written = write_rotary(config)
    theta = written.pop("rope_theta")
    scaling = written.pop("rope_scaling")
    return {
        **written,
        # An absent dictionary would mean YaRN.
        "rope_parameters": {"rope_type": "default", **(scaling or {}), "rope_theta": theta},
        "attention_bias": True,
        "sliding_window": config.window or WINDOW,  # transformers asks for one, though no layer may have it
        "layer_types": layer_types(config),
        "intermediate_size": experts.width,
        "num_local_experts": experts.count,
        "num_experts_per_tok": experts.per_token,
        "router_aux_loss_coef": experts.balance_loss,
        "swiglu_limit": config.activation_clamp,
        "swiglu_alpha": config.activation_gain,
    }


def export_problem(config: DecoderConfig) -> tuple[str, str] | None:
    if config.activation_clamp is None:
        return "model.activation_clamp", "null has no form in Hugging Face's"
    return needs_experts(config)


def spell(name: str, config: DecoderConfig) -> str:
    """Return a tensor's name in files: experts and sinks are tensors of their module, without `.weight`."""
    name = re.sub(r"\.mlp\.experts\.(\w+)\.bias$", r".mlp.experts.\1_bias", name)
    return re.sub(r"(\.mlp\.experts\.\w+)\.weight$|(\.sinks)\.bias$", lambda found: found[1] or found[2], name)


EXPERTS = "blocks.{}.mixture.experts"
FAMILY = ModelFamily(
    name="gpt_oss",
    architecture="GptOssForCausalLM",
    defaults={
        "vocab_size": 201088,
        "hidden_size": 2880,
        "intermediate_size": 2880,
        "num_hidden_layers": 36,
        "num_attention_heads": 64,
        "num_key_value_heads": 8,
        "head_dim": 64,
        "hidden_act": "silu",
        "max_position_embeddings": 131072,
        "rms_norm_eps": 1e-5,
        "tie_word_embeddings": False,
        "attention_bias": True,
        "sliding_window": WINDOW,
        "layer_types": None,
        "num_local_experts": 128,
        "num_experts_per_tok": 4,
        "swiglu_alpha": 1.702,
        "swiglu_limit": 7.0,
        "router_aux_loss_coef": 0.001,
        "rope_theta": 150000.0,
    },
    read=read,
    write=write,
    modules={
        **{ours: theirs for ours, theirs in LLAMA_MODULES.items() if ".mlp." not in str(ours)},
        "blocks.{}.attention.sinks": "model.layers.{}.self_attn.sinks",
        "blocks.{}.mixture.router": "model.layers.{}.mlp.router",
        (f"{EXPERTS}.gate", f"{EXPERTS}.up"): "model.layers.{}.mlp.experts.gate_up_proj",
        f"{EXPERTS}.down": "model.layers.{}.mlp.experts.down_proj",
    },
    aliases={"num_experts": "num_local_experts"},
    packed_experts=True,
    spell=spell,
    export_problem=export_problem,
)
