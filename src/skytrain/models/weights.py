"""Initial weights from a Hugging Face folder, a repository of its hub or an llm.c file."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor, nn

from ..config import DecoderConfig, HFModelConfig, build
from .agreement import check_agreement, read_hf_decoder, transformers_settings
from .decoder import Decoder, InitialValues
from .families import UnsupportedArchitecture
from .hf import FolderWeights, load_hf_folder, read_hf_weights
from .hf_causal_lm import build_hf
from .initialise import initial_value
from .llmc import read_llmc_header, read_llmc_weights
from .sources import find_weights


def initial_values(config: DecoderConfig, seed: int, *, start_weights: bool = True) -> InitialValues:
    """Return the initial values of a decoder's parameters: those of the folder `config.weights`, or of the seed."""
    if config.weights is not None and start_weights:
        found = read_hf_decoder(config.weights)
        check_agreement(config, found, config.weights)
        return FolderWeights(config, find_weights(config.weights), family=found.family).value

    def value(name: str, shape: torch.Size) -> Tensor:
        return initial_value(config, name, shape, seed)

    return value


def load_pretrained(source: str) -> nn.Module:
    """Load a folder, or a repository of the hub, on the CPU in float32.

    The model is the built-in decoder where it has the architecture, otherwise one of transformers.
    """
    folder = find_weights(source)
    try:
        return load_hf_folder(folder).eval()
    except UnsupportedArchitecture:
        settings: HFModelConfig = build(HFModelConfig, transformers_settings(source), key="model")
        return build_hf(settings, seed=0, start_weights=True).eval()


def load_weights(model: Decoder, source: str) -> None:
    """Load the weights at `source`, after a check that the decoder has their shapes and arithmetic."""
    path = Path(source)
    if path.is_file():
        check_agreement(model.config, read_llmc_header(path).config, source)
        read_llmc_weights(model, path)
        return
    found = read_hf_decoder(source)
    check_agreement(model.config, found, source)
    read_hf_weights(model, find_weights(source), family=found.family)
