"""Load and save decoders as Hugging Face folders (config.json and safetensors)."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import torch
from torch import Tensor, nn

from ..config import DecoderConfig
from .agreement import read_hf_decoder
from .decoder import Decoder
from .hf_form import hf_config, hf_form
from .hf_weights import WeightPair, from_hf, match_weights, to_hf, weight_pairs
from .parametrization import folded, folded_config
from .safetensors_io import MAX_FILE_BYTES, SafetensorsFolder, TensorSpec, write_folder


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


class FolderWeights:
    """A decoder's parameters in a Hugging Face folder, each read when it is asked for.

    Values have the dtype of the file, and most are views of the mapped file: whoever copies only a part of one reads
    only that part from the disk, and holds nothing else in memory.
    """

    def __init__(self, config: DecoderConfig, folder: Path, *, family: str | None = None) -> None:
        """Match the folder's tensors to the decoder's; `family`, by default the decoder's own, sets their names."""
        self._config = dataclasses.replace(config, family=family or config.family)
        self._files = SafetensorsFolder(folder)
        self.pairs = match_weights(self._config, self._files.shapes)
        self._pair_of = {name: pair for pair in self.pairs for name in pair.ours}
        with torch.device("meta"):
            self.shapes = {name: each.shape for name, each in Decoder(self._config).named_parameters()}

    def read(self, pair: WeightPair) -> dict[str, Tensor]:
        """Return the parameters of a pair by name."""
        return from_hf(self._config, pair, [self._files.get(each) for each in pair.theirs])

    def value(self, name: str, shape: torch.Size) -> Tensor:
        """Return one parameter; this method serves as the `InitialValues` of a model on the meta device."""
        found = self.read(self._pair_of[name])[name]
        assert found.shape == shape, (name, found.shape, shape)
        return found


def read_hf_weights(
    model: Decoder, folder: Path, dtype: torch.dtype = torch.float32, *, family: str | None = None
) -> None:
    """Load the weights of a folder into a decoder, which may be on the meta device."""
    weights = FolderWeights(model.config, folder, family=family)
    parameters = dict(model.named_parameters())
    for pair in weights.pairs:
        for name, value in weights.read(pair).items():
            owner, _, leaf = name.rpartition(".")
            trained = parameters[name].requires_grad
            setattr(model.get_submodule(owner), leaf, nn.Parameter(value.to(dtype), requires_grad=trained))
    model.tie()


def save_hf_folder(
    model: Decoder,
    folder: Path,
    *,
    eot: int | None = None,
    bos: int | None = None,
    dtype: torch.dtype | None = None,
    max_file_bytes: int = MAX_FILE_BYTES,
) -> None:
    """Write config.json and the weights into an existing folder, one tensor at a time.

    `dtype` is that of the weights; by default they have the model's. Vocabulary padding is dropped, and the multipliers
    of muP and CompleteP are folded into the weights. The weights of a model on the meta device are its `initial_values`.
    """
    form = hf_form(folded_config(model.config))
    written = dtype or next(model.parameters()).dtype
    label = str(written).removeprefix("torch.")
    text = json.dumps(hf_config(form, eot=eot, bos=bos, dtype=label), indent=2, sort_keys=True)
    (folder / "config.json").write_text(text + "\n", encoding="utf-8")
    parameters = dict(model.named_parameters())

    def value(name: str) -> Tensor:
        """Return a parameter; a model on the meta device reads it now, so that the whole is never in memory."""
        found = parameters[name].detach()
        if not found.is_meta:
            return found
        assert model.initial_values is not None, "a model without weights"
        return model.initial_values(name, found.shape)

    pairs = list(weight_pairs(form, parameters))

    def dtype_of(pair: WeightPair) -> torch.dtype:
        """Return the type of a pair in files. What balances experts stays in float32: bf16 would change who is chosen."""
        return torch.float32 if pair.ours[0].endswith(".load_bias") else written

    specs = [
        TensorSpec(name, dtype_of(pair), tuple(tensor.shape))
        for pair in pairs
        for name, tensor in to_hf(form, pair, [parameters[each].detach().to("meta") for each in pair.ours]).items()
    ]
    tensors = (
        tensor.to(dtype_of(pair))
        for pair in pairs
        for tensor in to_hf(form, pair, [folded(model.config, each, value(each)) for each in pair.ours]).values()
    )
    write_folder(folder, specs, tensors, max_file_bytes)
