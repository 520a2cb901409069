"""Models: one configurable decoder, its weight formats, and the contract by which any other model plugs in.

The names below load torch when they are asked for, not when this package is imported.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .attention import KVCache
    from .build import build_model, count_parameters
    from .decoder import Decoder
    from .hf import load_hf_folder
    from .hf_causal_lm import HFCausalLM
    from .llmc import load_llmc
    from .loss import flops_per_token, lm_loss, token_loss

_HOMES = {
    "Decoder": "decoder",
    "HFCausalLM": "hf_causal_lm",
    "KVCache": "attention",
    "build_model": "build",
    "count_parameters": "build",
    "flops_per_token": "loss",
    "lm_loss": "loss",
    "load_hf_folder": "hf",
    "load_llmc": "llmc",
    "token_loss": "loss",
}

__all__ = [
    "Decoder",
    "HFCausalLM",
    "KVCache",
    "build_model",
    "count_parameters",
    "flops_per_token",
    "lm_loss",
    "load_hf_folder",
    "load_llmc",
    "token_loss",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f".{_HOMES[name]}", __name__), name)
