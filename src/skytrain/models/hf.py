"""Load and save decoders as Hugging Face folders (config.json and safetensors)."""

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
    """Load a decoder on the CPU from a folder written by `save_pretrained` or `skytrain export`.

    Weights are streamed: in addition to the model, one tensor is in memory at a time.
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
    """Load the weights of a folder into a decoder, which may be on the meta device.

    `family` sets the naming scheme of the tensors; by default it is the decoder's own family.
    """
    weights = SafetensorsFolder(folder)
    config = dataclasses.replace(model.config, family=family or model.config.family)
    for pair in match_weights(config, weights.shapes):
        for name, value in from_hf(config, pair, [weights.get(each) for each in pair.theirs]).items():
            owner, _, leaf = name.rpartition(".")
            setattr(model.get_submodule(owner), leaf, nn.Parameter(value.to(dtype)))
    model.tie()


def save_hf_folder(model: Decoder, folder: Path, *, eot: int | None = None) -> None:
    """Write config.json and the weights into an existing folder, one tensor at a time.

    Vocabulary padding is dropped, and the multipliers of muP and CompleteP are folded into the weights.
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
