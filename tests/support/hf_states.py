"""Whole state dicts between our names and Hugging Face's, by the functions that read and write their folders."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from skytrain.config import DecoderConfig
from skytrain.models.hf_weights import from_hf, match_names, to_hf


def state_to_hf(config: DecoderConfig, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """A whole state dict (or its gradients) under Hugging Face's names; a tied head is left out."""
    theirs: dict[str, Tensor] = {}
    for name, value in state.items():
        if not (config.tied_head and name == "head.projection.weight"):
            theirs.update(to_hf(config, name, value))
    return theirs


def state_from_hf(config: DecoderConfig, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Our state dict from Hugging Face's, after a check that every tensor is there and fits."""
    names = {name: tuple(tensor.shape) for name, tensor in state.items()}
    return {
        ours: from_hf(config, ours, [state[name] for name in theirs]) for ours, theirs in match_names(config, names)
    }
