"""SmolLM3: Llama's parts, without rotary positions in every n-th layer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ...config import DecoderConfig
from ._family import SILU, ModelFamily, UnsupportedArchitecture, refuse
from ._rotary import LLAMA_MODULES, read_rotary, write_rotary


def read(data: Mapping[str, Any]) -> dict[str, Any]:
    refuse(data, hidden_act=SILU, use_sliding_window=False)
    plain = read_rotary(data)
    return {**plain, "rope_except": _rope_except(data, plain["layers"])}


def _rope_except(data: Mapping[str, Any], layers: int) -> int | None:
    """Return every how many layers there are no rotary positions, from a list that has 0 for such a layer."""
    turned = data["no_rope_layers"]
    if turned is None:
        every: int = data["no_rope_layer_interval"]
        return every if every <= layers else None
    turned = turned[:layers]
    if all(turned):
        return None
    every = turned.index(0) + 1
    if [bool(each) for each in turned] != [(layer + 1) % every != 0 for layer in range(layers)]:
        raise UnsupportedArchitecture("config.json: no_rope_layers does not leave out every n-th layer")
    return every


def write(config: DecoderConfig) -> dict[str, Any]:
    turned = [int(config.rope_of(layer) != "none") for layer in range(config.layers)]
    return {**write_rotary(config), "no_rope_layers": turned, "use_sliding_window": False}


FAMILY = ModelFamily(
    name="smollm3",
    architecture="SmolLM3ForCausalLM",
    defaults={
        "vocab_size": 128256,
        "hidden_size": 2048,
        "intermediate_size": 11008,
        "num_hidden_layers": 36,
        "num_attention_heads": 16,
        "num_key_value_heads": 4,
        "hidden_act": "silu",
        "max_position_embeddings": 32768,
        "rms_norm_eps": 1e-6,
        "rope_theta": 2e6,
        "use_sliding_window": False,
        "sliding_window": None,
        "no_rope_layers": None,
        "no_rope_layer_interval": 4,
        "layer_types": None,
        "attention_bias": False,
        "mlp_bias": False,
        "tie_word_embeddings": True,
    },
    read=read,
    write=write,
    modules=LLAMA_MODULES,
)
