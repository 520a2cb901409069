"""What Llama and its descendants share: module names, and rotary positions and windows in config.json. No torch."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from ...config import DecoderConfig, DynamicRope
from ..yarn import yarn_magnitude
from ._family import ModuleNames, UnsupportedArchitecture, need, refuse

ROPE_THETA = 10000.0  # the default of every family
LLAMA_MODULES: ModuleNames = {
    "embedding.tokens": "model.embed_tokens",
    "blocks.{}.attention_norm": "model.layers.{}.input_layernorm",
    "blocks.{}.attention.qkv": (
        "model.layers.{}.self_attn.q_proj",
        "model.layers.{}.self_attn.k_proj",
        "model.layers.{}.self_attn.v_proj",
    ),
    "blocks.{}.attention.out": "model.layers.{}.self_attn.o_proj",
    "blocks.{}.mlp_norm": "model.layers.{}.post_attention_layernorm",
    "blocks.{}.mlp.gate": "model.layers.{}.mlp.gate_proj",
    "blocks.{}.mlp.up": "model.layers.{}.mlp.up_proj",
    "blocks.{}.mlp.down": "model.layers.{}.mlp.down_proj",
    "head.norm": "model.norm",
    "head.projection": "lm_head",
}


def read_rotary(data: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of a decoder with rotary positions, without windows."""
    refuse(data, attention_bias=False, mlp_bias=False)
    length = need(data, "max_position_embeddings")
    rope = _rope_parameters(data)
    scaling = _read_scaling(rope, length, data.get("original_max_position_embeddings"))
    return {
        "layers": need(data, "num_hidden_layers"),
        "width": need(data, "hidden_size"),
        "heads": need(data, "num_attention_heads"),
        "kv_heads": data["num_key_value_heads"],
        "head_size": data.get("head_dim"),
        "mlp_width": need(data, "intermediate_size"),
        "max_length": round(length * scaling["factor"]) if scaling and scaling["kind"] == "dynamic" else length,
        "norm_eps": need(data, "rms_norm_eps"),
        "rope_theta": rope["rope_theta"],
        "rope_scaling": scaling,
        "window": None,
        "window_every": 1,
    }


def write_rotary(config: DecoderConfig) -> dict[str, Any]:
    """Return the keys that `read_rotary` reads."""
    scaling = config.rope_scaling
    return {
        "num_hidden_layers": config.layers,
        "hidden_size": config.width,
        "num_attention_heads": config.heads,
        "num_key_value_heads": config.groups,
        "head_dim": config.head_width,
        "intermediate_size": config.hidden_width,
        "max_position_embeddings": scaling.original_length if isinstance(scaling, DynamicRope) else config.max_length,
        "rms_norm_eps": config.norm_eps,
        # The keys of transformers 4, which version 5 reads too.
        "rope_theta": config.rope_theta,
        "rope_scaling": _write_scaling(config),
        "hidden_act": "silu",
    }


def whole_heads(config: DecoderConfig) -> tuple[str, str] | None:
    """Return an `export_problem` if the width is not a multiple of the heads, which transformers may refuse."""
    if config.width % config.heads == 0:
        return None
    return (
        "model.width",
        f"{config.width} is not a multiple of the {config.heads} heads, and transformers refuses such a",
    )


def read_windows(kinds: Sequence[str], window: int | None) -> dict[str, Any]:
    """Return the attention kinds of all layers as the decoder's `window` and `window_every`."""
    slides = [kind == "sliding_attention" for kind in kinds]
    if not any(slides) or window is None:
        return {"window": None, "window_every": 1}
    for every in range(1, len(slides) + 1):
        if slides == [layer % every == 0 for layer in range(len(slides))]:
            return {"window": window, "window_every": every}
    raise UnsupportedArchitecture("config.json: layer_types is not a window in every n-th layer, from the first")


def layer_types(config: DecoderConfig) -> list[str]:
    """Return the attention kind of each layer: the inverse of `read_windows`."""
    return ["sliding_attention" if config.window_of(layer) else "full_attention" for layer in range(config.layers)]


def _rope_parameters(data: Mapping[str, Any]) -> dict[str, Any]:
    """Return transformers 5's `rope_parameters`, or the `rope_theta` and `rope_scaling` of earlier versions.

    Where a file has both, transformers takes the dictionary from `rope_scaling` and the keys that it lacks from the file.
    """
    rope = dict(data.get("rope_scaling") or data.get("rope_parameters") or {})
    rope.setdefault("rope_theta", data.get("rope_theta", ROPE_THETA))
    rope.setdefault("partial_rotary_factor", data.get("partial_rotary_factor"))
    need(rope, "rope_theta")
    refuse(rope, partial_rotary_factor=(1.0, None))
    if any(isinstance(value, Mapping) for value in rope.values()):
        raise UnsupportedArchitecture(
            "config.json: rotary positions that differ from layer to layer are not supported by the built-in decoder"
        )
    return rope


def _read_scaling(rope: Mapping[str, Any], length: int, original: int | None) -> dict[str, Any] | None:
    """Return the decoder's RoPE scaling, or None for plain rotary positions.

    `original` is the length before the extension, where config.json has it outside the dictionary.
    """
    kind = rope.get("rope_type", rope.get("type", "default"))
    if kind == "default":
        return None
    if kind == "linear":
        return {"kind": kind, "factor": need(rope, "factor")}
    if kind == "dynamic":
        # transformers extends from max_position_embeddings, whatever original_max_position_embeddings says.
        return {"kind": kind, "factor": need(rope, "factor"), "original_length": length}
    original = original or rope.get("original_max_position_embeddings") or length
    if kind == "llama3":
        keys = ("factor", "low_freq_factor", "high_freq_factor")
        return {"kind": kind, **{key: need(rope, key) for key in keys}, "original_length": original}
    if kind == "yarn":
        return _read_yarn(rope, length, original)
    raise UnsupportedArchitecture(
        f"config.json: rotary positions of type {kind!r} are not supported (linear, dynamic, llama3 and yarn are)"
    )


def _read_yarn(rope: Mapping[str, Any], length: int, original: int) -> dict[str, Any]:
    factor = rope.get("factor") or length / original
    magnitude = rope.get("attention_factor")
    if magnitude is None and rope.get("mscale") and rope.get("mscale_all_dim"):
        magnitude = yarn_magnitude(factor, rope["mscale"]) / yarn_magnitude(factor, rope["mscale_all_dim"])
    betas = {"beta_fast": rope.get("beta_fast") or 32, "beta_slow": rope.get("beta_slow") or 1}
    plain = {"kind": "yarn", "factor": factor, **betas, "original_length": original}
    truncate = rope.get("truncate", True)
    own = yarn_magnitude(factor)
    if truncate and magnitude in (None, own):
        return plain
    return {**plain, "kind": "yarn_custom", "magnitude": magnitude or own, "truncate": truncate}


def _write_scaling(config: DecoderConfig) -> dict[str, Any] | None:
    if config.rope_scaling is None:
        return None
    keys = dataclasses.asdict(config.rope_scaling)
    keys["rope_type"] = keys.pop("kind").removesuffix("_custom")
    if "magnitude" in keys:
        keys["attention_factor"] = keys.pop("magnitude")
    if "original_length" in keys:
        original = keys.pop("original_length")
        if not isinstance(config.rope_scaling, DynamicRope):  # there it is max_position_embeddings
            keys["original_max_position_embeddings"] = original
    return keys
