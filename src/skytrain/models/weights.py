"""Initial weights from a Hugging Face folder or an llm.c file."""

from __future__ import annotations

from pathlib import Path

from ..config import ConfigError
from .agreement import check_agreement, read_hf_decoder
from .decoder import Decoder
from .hf import read_hf_weights
from .llmc import read_llmc_header, read_llmc_weights


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
