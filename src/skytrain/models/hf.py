"""Hugging Face folders: a decoder from config.json and safetensors, and back."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import torch
from torch import nn

from .agreement import read_hf_decoder
from .decoder import Decoder
from .hf_form import hf_config, hf_form
from .hf_weights import from_hf, match_weights, to_hf, weight_pairs
from .parametrization import folded, folded_config
from .safetensors_io import SafetensorsFolder, TensorSpec, write_folder


def load_hf_folder(
    path: str | Path, *, dtype: torch.dtype = torch.float32, pad_vocab_to: int = 128, max_length: int | None = None
) -> Decoder:
    """The decoder in a folder that `save_pretrained` or our export wrote, on the CPU.

    Streams: in addition to the model, one tensor is in memory at a time.
    """
    folder = Path(path)
    config = read_hf_decoder(folder, pad_vocab_to=pad_vocab_to, max_length=max_length)
    with torch.device("meta"):
        model = Decoder(config)
    read_hf_weights(model, folder, dtype)
    return model


def read_hf_weights(
    model: Decoder, folder: Path, dtype: torch.dtype = torch.float32, *, family: str | None = None
) -> None:
    """Load the weights of a folder, named as in `family`, into a decoder, on the meta device or not."""
    weights = SafetensorsFolder(folder)
    config = dataclasses.replace(model.config, family=family or model.config.family)
    for pair in match_weights(config, weights.shapes):
        for name, value in from_hf(config, pair, [weights.get(each) for each in pair.theirs]).items():
            owner, _, leaf = name.rpartition(".")
            setattr(model.get_submodule(owner), leaf, nn.Parameter(value.to(dtype)))
    model.tie()


def save_hf_folder(model: Decoder, folder: Path, *, eot: int | None = None) -> None:
    """Writes config.json and the weights into an existing folder, tensor by tensor, without the vocabulary's padding.

    Multipliers of other parametrizations become part of the weights.
    """
    form = hf_form(folded_config(model.config))
    dtype = str(next(model.parameters()).dtype).removeprefix("torch.")
    text = json.dumps(hf_config(form, eot=eot, dtype=dtype), indent=2, sort_keys=True)
    (folder / "config.json").write_text(text + "\n", encoding="utf-8")
    parameters = dict(model.named_parameters())
    pairs = list(weight_pairs(form, parameters))
    specs = [
        TensorSpec(name, tensor.dtype, tuple(tensor.shape))
        for pair in pairs
        for name, tensor in to_hf(form, pair, [parameters[each].detach().to("meta") for each in pair.ours]).items()
    ]
    tensors = (
        tensor
        for pair in pairs
        for tensor in to_hf(
            form, pair, [folded(model.config, each, parameters[each].detach()) for each in pair.ours]
        ).values()
    )
    write_folder(folder, specs, tensors)
