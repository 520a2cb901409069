"""Hugging Face folders: a decoder from config.json and safetensors, and back."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ..config import DecoderConfig, SkytrainError
from .decoder import Decoder
from .hf_config import hf_config, read_hf_config
from .hf_weights import from_hf, match_names, to_hf
from .parametrization import folded, folded_config
from .safetensors_io import SafetensorsFolder, TensorSpec, write_folder


def load_hf_folder(
    path: str | Path, *, dtype: torch.dtype = torch.float32, pad_vocab_to: int = 128, max_length: int | None = None
) -> Decoder:
    """The decoder in a folder that `save_pretrained` or our export wrote, on the CPU.

    Streams: beside the model itself one tensor is in memory at a time.
    """
    folder = Path(path)
    config = read_hf_decoder(folder, pad_vocab_to=pad_vocab_to, max_length=max_length)
    with torch.device("meta"):
        model = Decoder(config)
    read_hf_weights(model, folder, dtype)
    return model


def read_hf_decoder(folder: Path, *, pad_vocab_to: int = 128, max_length: int | None = None) -> DecoderConfig:
    """The decoder that a folder's config.json describes."""
    try:
        data: dict[str, Any] = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
        raise SkytrainError(f"{folder} is not a Hugging Face model: config.json cannot be read ({error})") from None
    return read_hf_config(data, name=folder.resolve().name, pad_vocab_to=pad_vocab_to, max_length=max_length)


def read_hf_weights(model: Decoder, folder: Path, dtype: torch.dtype = torch.float32) -> None:
    """Gives a decoder, on the meta device or not, the weights in a folder."""
    weights = SafetensorsFolder(folder)
    for ours, theirs in match_names(model.config, weights.shapes):
        owner, _, leaf = ours.rpartition(".")
        value = from_hf(model.config, ours, [weights.get(name) for name in theirs])
        setattr(model.get_submodule(owner), leaf, nn.Parameter(value.to(dtype)))
    model.tie()


def save_hf_folder(model: Decoder, folder: Path, *, eot: int | None = None) -> None:
    """Writes config.json and the weights into an existing folder, tensor by tensor, without the vocabulary's padding.

    What another parametrization multiplies in the forward pass becomes part of the weights.
    """
    config = folded_config(model.config)
    dtype = str(next(model.parameters()).dtype).removeprefix("torch.")
    text = json.dumps(hf_config(config, eot=eot, dtype=dtype), indent=2, sort_keys=True)
    (folder / "config.json").write_text(text + "\n", encoding="utf-8")
    specs = [
        TensorSpec(name, piece.dtype, tuple(piece.shape))
        for ours, parameter in model.named_parameters()
        for name, piece in to_hf(config, ours, parameter.detach().to("meta")).items()
    ]
    write_folder(folder, specs, _pieces(model))


def _pieces(model: Decoder) -> Iterator[Tensor]:
    for ours, parameter in model.named_parameters():
        yield from to_hf(model.config, ours, folded(model.config, ours, parameter.detach())).values()
