"""Qwen 2 and 2.5: Llama's parts with biases on queries, keys and values."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ...config import DecoderConfig, SkytrainError
from ._family import SILU, ModelFamily, refuse
from ._rotary import LLAMA_MODULES, layer_types, read_rotary, read_windows, write_rotary


def read(data: Mapping[str, Any]) -> dict[str, Any]:
    refuse(data, hidden_act=SILU)
    plain = read_rotary(data)
    window = data["sliding_window"] if data["use_sliding_window"] else None
    sliding_from = data["max_window_layers"] if window else plain["layers"]
    kinds = data["layer_types"] or [
        "sliding_attention" if layer >= sliding_from else "full_attention" for layer in range(plain["layers"])
    ]
    if window is None and "sliding_attention" in kinds:
        raise SkytrainError("config.json: layer_types has sliding_attention, but use_sliding_window is off")
    return {**plain, **read_windows(kinds, window)}


def write(config: DecoderConfig) -> dict[str, Any]:
    plain = {**write_rotary(config), "use_sliding_window": config.window is not None}
    if config.window is None:
        return plain
    return {**plain, "sliding_window": config.window, "max_window_layers": 0, "layer_types": layer_types(config)}


FAMILY = ModelFamily(
    name="qwen2",
    architecture="Qwen2ForCausalLM",
    defaults={
        "vocab_size": 151936,
        "hidden_size": 4096,
        "intermediate_size": 22016,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 32,
        "hidden_act": "silu",
        "max_position_embeddings": 32768,
        "rms_norm_eps": 1e-6,
        "use_sliding_window": False,
        "sliding_window": 4096,
        "max_window_layers": 28,
        "layer_types": None,
        "tie_word_embeddings": False,
    },
    read=read,
    write=write,
    modules=LLAMA_MODULES,
)
