"""Initial weights from a Hugging Face folder or an llm.c file."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from ..config import ConfigError, DecoderConfig
from .agreement import check_agreement, read_hf_decoder
from .decoder import Decoder, InitialValues
from .hf import FolderWeights, read_hf_weights
from .initialise import initial_value
from .llmc import read_llmc_header, read_llmc_weights


def initial_values(config: DecoderConfig, seed: int, *, start_weights: bool = True) -> InitialValues:
    """The values that each parameter of a decoder starts with: those of `config.weights`, a folder, or of the seed."""
    if config.weights is not None and start_weights:
        found = read_hf_decoder(Path(config.weights))
        check_agreement(config, found, config.weights)
        return FolderWeights(config, Path(config.weights), family=found.family).value

    def value(name: str, shape: torch.Size) -> Tensor:
        return initial_value(config, name, shape, seed)

    return value


def load_weights(model: Decoder, source: str) -> None:
    """Load the weights at `source`, after a check that the decoder has their shapes and arithmetic."""
    path = Path(source)
    if path.is_dir():
        found = read_hf_decoder(path)
        check_agreement(model.config, found, source)
        read_hf_weights(model, path, family=found.family)
    elif path.is_file():
        check_agreement(model.config, read_llmc_header(path).config, source)
        read_llmc_weights(model, path)
    else:
        raise ConfigError("model.weights", f"{source!r} is neither a folder nor a file")
