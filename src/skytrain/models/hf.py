"""Hugging Face folders: a decoder from config.json and safetensors, and back."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import torch
from torch import Tensor, nn

from ..config import SkytrainError
from .decoder import Decoder
from .hf_config import hf_config, read_hf_config
from .hf_weights import from_hf, match_names, to_hf
from .safetensors_io import SafetensorsFolder, TensorSpec, write_folder


def load_hf_folder(
    path: str | Path, *, dtype: torch.dtype = torch.float32, pad_vocab_to: int = 128, max_length: int | None = None
) -> Decoder:
    """The decoder in a folder that `save_pretrained` or our export wrote, on the CPU.

    Streams: beside the model itself one tensor is in memory at a time.
    """
    folder = Path(path)
    try:
        data = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
        raise SkytrainError(f"{folder} is not a Hugging Face model: config.json cannot be read ({error})") from None
    config = read_hf_config(data, name=folder.resolve().name, pad_vocab_to=pad_vocab_to, max_length=max_length)
    weights = SafetensorsFolder(folder)
    with torch.device("meta"):
        model = Decoder(config)
    for ours, theirs in match_names(config, weights.shapes):
        owner, _, leaf = ours.rpartition(".")
        value = from_hf(config, ours, [weights.get(name) for name in theirs])
        setattr(model.get_submodule(owner), leaf, nn.Parameter(value.to(dtype)))
    model.tie()
    return model


def save_hf_folder(model: Decoder, folder: Path, *, eot: int | None = None) -> None:
    """Writes config.json and the weights into an existing folder, tensor by tensor, without the vocabulary's padding."""
    dtype = str(next(model.parameters()).dtype).removeprefix("torch.")
    text = json.dumps(hf_config(model.config, eot=eot, dtype=dtype), indent=2, sort_keys=True)
    (folder / "config.json").write_text(text + "\n", encoding="utf-8")
    specs = [
        TensorSpec(name, piece.dtype, tuple(piece.shape))
        for ours, parameter in model.named_parameters()
        for name, piece in to_hf(model.config, ours, parameter.detach().to("meta")).items()
    ]
    write_folder(folder, specs, _pieces(model))


def _pieces(model: Decoder) -> Iterator[Tensor]:
    for ours, parameter in model.named_parameters():
        yield from to_hf(model.config, ours, parameter.detach()).values()
