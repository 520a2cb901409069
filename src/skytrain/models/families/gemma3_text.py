"""Gemma 3, text only: Gemma 2 with normalized queries and keys, and a window in all but every n-th layer.

Layers with a window have rotary positions of their own: another base, and never extended.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ...config import DecoderConfig
from . import gemma2
from ._family import ModelFamily, refuse
from ._rotary import ROPE_THETA, layer_types, read_rotary, read_windows, whole_heads, write_rotary

FULL_EVERY = 6  # where config.json has no pattern
WINDOW = 4096  # where config.json has none


def read(data: Mapping[str, Any]) -> dict[str, Any]:
    refuse(data, hidden_activation="gelu_pytorch_tanh", use_bidirectional_attention=(None, False))
    refuse(data, attn_logit_softcapping=None)
    whole, window = _rope_parameters(data)
    plain = read_rotary({**data, "rope_scaling": None, "rope_parameters": whole})
    every = data.get("sliding_window_pattern") or FULL_EVERY
    kinds = data["layer_types"] or [
        "sliding_attention" if (layer + 1) % every else "full_attention" for layer in range(plain["layers"])
    ]
    return {
        **plain,
        **_read_windows(kinds, data["sliding_window"]),
        "window_theta": window["rope_theta"],
        "attention_scale": data["query_pre_attn_scalar"] ** -0.5,
        "logit_softcap": data["final_logit_softcapping"],
    }


def _rope_parameters(data: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the rotary positions of layers that see everything and of those with a window."""
    given = data.get("rope_parameters") or {}
    whole = {**(given.get("full_attention") or {}), **(data.get("rope_scaling") or {})}
    window = dict(given.get("sliding_attention") or {})
    whole.setdefault("rope_theta", data["rope_theta"])
    window.setdefault("rope_theta", data.get("rope_local_base_freq", ROPE_THETA))
    refuse(window, rope_type="default")
    return whole, window


def _read_windows(kinds: list[str], window: int | None) -> dict[str, Any]:
    full = [kind == "full_attention" for kind in kinds]
    if window is not None and any(full) and not full[0]:
        every = full.index(True) + 1
        if full == [(layer + 1) % every == 0 for layer in range(len(full))]:
            return {"window": window, "window_every": 1, "full_every": every}
    return {**read_windows(kinds, window), "full_every": None}


def write(config: DecoderConfig) -> dict[str, Any]:
    scalar = config.head_width if config.attention_scale is None else config.attention_scale**-2
    return {
        **write_rotary(config),
        "rope_local_base_freq": config.window_theta or config.rope_theta,
        "hidden_act": "gelu_pytorch_tanh",
        "hidden_activation": "gelu_pytorch_tanh",
        "query_pre_attn_scalar": round(scalar),  # Gemma3TextConfig takes whole numbers only
        "sliding_window": config.window or WINDOW,  # transformers asks for one, though no layer may have it
        "layer_types": layer_types(config),
        "attn_logit_softcapping": None,
        "final_logit_softcapping": config.logit_softcap,
    }


FAMILY = ModelFamily(
    name="gemma3_text",
    architecture="Gemma3ForCausalLM",
    defaults={
        **gemma2.FAMILY.defaults,
        "vocab_size": 262208,
        "max_position_embeddings": 131072,
        "attn_logit_softcapping": None,
        "final_logit_softcapping": None,
        "use_bidirectional_attention": False,
        "rope_theta": 1e6,
    },
    read=read,
    write=write,
    modules={
        **gemma2.FAMILY.modules,
        "blocks.{}.attention.q_norm": "model.layers.{}.self_attn.q_norm",
        "blocks.{}.attention.k_norm": "model.layers.{}.self_attn.k_norm",
    },
    export_problem=whole_heads,
)
