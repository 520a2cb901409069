"""Weights to start from: a Hugging Face folder or an llm.c file, into a decoder whose configuration they must fit."""

from __future__ import annotations

from pathlib import Path

from ..config import ConfigError, DecoderConfig
from .decoder import Decoder
from .hf import read_hf_decoder, read_hf_weights
from .hf_config import explicit
from .llmc import read_llmc_header, read_llmc_weights

SHAPE = ("family", "layers", "width", "heads", "kv_heads", "head_size", "mlp_width", "vocab_size", "tied_head")


def load_weights(model: Decoder, source: str) -> None:
    """Gives the decoder the weights at `source`, after a check that they are of its shape."""
    path = Path(source)
    if path.is_dir():
        _check_shape(model.config, read_hf_decoder(path), source)
        read_hf_weights(model, path)
    elif path.is_file():
        _check_shape(model.config, read_llmc_header(path).config, source)
        read_llmc_weights(model, path)
    else:
        raise ConfigError("model.weights", f"{source!r} is neither a folder nor a file")


def _check_shape(wanted: DecoderConfig, found: DecoderConfig, source: str) -> None:
    learned = ("max_length",) if wanted.positions == "learned" else ()
    for field in (*SHAPE, *learned):
        asked, there = getattr(explicit(wanted), field), getattr(explicit(found), field)
        if asked != there:
            raise ConfigError(
                f"model.{field}",
                f"{asked}, but the weights in {source} have {there}",
                hint=f"set model.{field}={there}",
            )
