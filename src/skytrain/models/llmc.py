"""llm.c's model files: a header of 256 int32 and GPT-2's tensors in a fixed order, all layers of a kind together."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from ..config import ConfigError, DecoderConfig, SkytrainError, build, check_decoder
from .decoder import Decoder
from .hf_weights import join_groups, split_groups
from .initialise import VOCABULARY
from .parametrization import folded, folded_config
from .sizes import model_file

MAGIC = 20240326
HEADER_INTS = 256
VERSIONS = {3: torch.float32, 5: torch.bfloat16}  # both with the vocabulary padded
PADDING = 128  # rows of the vocabulary come in multiples of this
ORDER = (
    "attention_norm.weight",
    "attention_norm.bias",
    "attention.qkv.weight",
    "attention.qkv.bias",
    "attention.out.weight",
    "attention.out.bias",
    "mlp_norm.weight",
    "mlp_norm.bias",
    "mlp.up.weight",
    "mlp.up.bias",
    "mlp.down.weight",
    "mlp.down.bias",
)


@dataclass(frozen=True)
class Header:
    config: DecoderConfig
    dtype: torch.dtype
    padded_vocab: int


def load_llmc(path: str | Path, *, dtype: torch.dtype = torch.float32) -> Decoder:
    """Load the decoder in a model file of llm.c (not its optimizer state), one tensor at a time."""
    with torch.device("meta"):
        model = Decoder(read_llmc_header(Path(path)).config)
    read_llmc_weights(model, Path(path), dtype)
    return model


class LlmcWeights:
    """The parameters of a model file, each read when it is asked for."""

    def __init__(self, path: Path, config: DecoderConfig | None = None) -> None:
        """Read the file's header; `config` is the decoder's, for a vocabulary padding that differs from llm.c's."""
        self._path = path
        self._header = read_llmc_header(path)
        self.config = config or self._header.config
        with torch.device("meta"):
            parameters = dict(Decoder(self.config).named_parameters())
        self.shapes = {name: parameters[name].shape for name in _names(self.config.layers)}
        self._starts: dict[str, int] = {}
        start = 4 * HEADER_INTS
        for name in self.shapes:
            self._starts[name] = start
            start += self._stored(name).numel() * self._header.dtype.itemsize

    def _stored(self, name: str) -> torch.Size:
        return torch.Size((self._header.padded_vocab, self.config.width)) if name in VOCABULARY else self.shapes[name]

    def read(self, name: str) -> Tensor:
        """Return one parameter, in the type of the file."""
        config = self.config
        header = self._header
        stored = self._stored(name)
        with self._path.open("rb") as file:
            file.seek(self._starts[name])
            value = _read(file.read(stored.numel() * header.dtype.itemsize), header.dtype, stored)
        if name in VOCABULARY:
            padding = value.new_zeros(self.shapes[name][0] - config.vocab_size, config.width)
            return torch.cat((value[: config.vocab_size], padding))
        return join_groups(config, *value.chunk(3)) if ".qkv." in name else value


def read_llmc_weights(model: Decoder, path: Path, dtype: torch.dtype = torch.float32) -> None:
    """Load the weights of a file into a decoder of the same shape, on the meta device or not."""
    weights = LlmcWeights(path, model.config)
    for name in weights.shapes:
        owner, _, leaf = name.rpartition(".")
        setattr(model.get_submodule(owner), leaf, nn.Parameter(weights.read(name).to(dtype)))
    model.tie()


def save_llmc(model: Decoder, path: Path, dtype: torch.dtype | None = None) -> None:
    """Write a model file in float32 (version 3) or bfloat16 (version 5); by default in the type of the weights."""
    config = folded_config(model.config)
    _check_family(config)
    weights = dict(model.named_parameters())
    dtype = dtype or next(iter(weights.values())).dtype
    version = next((number for number, kind in VERSIONS.items() if kind == dtype), 3)
    padded = -(-config.vocab_size // PADDING) * PADDING
    header = np.zeros(HEADER_INTS, dtype="<i4")
    header[:8] = (
        MAGIC,
        version,
        config.max_length,
        config.vocab_size,
        config.layers,
        config.heads,
        config.width,
        padded,
    )
    with path.open("wb") as file:
        file.write(header.tobytes())
        for name in _names(config.layers):
            value = folded(model.config, name, weights[name].detach()).cpu().to(VERSIONS[version])
            if name in VOCABULARY:
                value = torch.cat(
                    (value[: config.vocab_size], value.new_zeros(padded - config.vocab_size, config.width))
                )
            elif ".qkv." in name:
                value = torch.cat(tuple(split_groups(config, value)))
            file.write(value.contiguous().view(-1).view(torch.uint8).numpy().data)


def _names(layers: int) -> Iterator[str]:
    yield "embedding.tokens.weight"
    yield "embedding.positions.weight"
    for part in ORDER:
        yield from (f"blocks.{layer}.{part}" for layer in range(layers))
    yield "head.norm.weight"
    yield "head.norm.bias"


def _read(data: bytes, dtype: torch.dtype, shape: torch.Size) -> Tensor:
    return torch.frombuffer(bytearray(data), dtype=dtype).view(shape)


def read_llmc_header(path: Path) -> Header:
    try:
        size = path.stat().st_size
        header = np.fromfile(path, dtype="<i4", count=HEADER_INTS).tolist()
    except OSError as error:
        raise SkytrainError(f"{path} cannot be read: {error}") from None
    if len(header) < HEADER_INTS or header[0] != MAGIC:
        raise SkytrainError(f"{path} is not a model file of llm.c (it does not begin with {MAGIC})")
    version, length, vocabulary, layers, heads, width, padded = header[1:8]
    if version not in VERSIONS:
        raise SkytrainError(f"{path} is of version {version}; versions {' and '.join(map(str, VERSIONS))} are known")
    sizes = {"layers": layers, "heads": heads, "width": width, "vocab_size": vocabulary, "max_length": length}
    values = {**model_file("_gpt2"), **sizes, "name": path.stem, "pad_vocab_to": PADDING}
    config: DecoderConfig = build(DecoderConfig, values, key=str(path))
    check_decoder(config)
    count = (padded + length) * width + layers * (12 * width**2 + 13 * width) + 2 * width
    wanted = 4 * HEADER_INTS + count * VERSIONS[version].itemsize
    if size != wanted or padded < vocabulary:
        raise SkytrainError(f"{path} has {size} bytes; its header asks for {wanted}: it is cut short or altered")
    return Header(config, VERSIONS[version], padded)


def _check_family(config: DecoderConfig) -> None:
    """Raise for what llm.c cannot load: it trains GPT-2 only, and its header holds sizes only."""
    traits = model_file("_gpt2")
    free = {"vocab_size", "pad_vocab_to", "max_length", "dropout", "weights"}
    plain: DecoderConfig = build(
        DecoderConfig, {**traits, "name": "", "layers": 1, "width": 1, "heads": 1, "vocab_size": 1}
    )
    for field in ("family", *(key for key in traits if key not in free)):
        value = getattr(config, field)
        if value != getattr(plain, field):
            raise ConfigError(
                f"model.{field}",
                f"{'null' if value is None else value} has no form in llm.c, which trains GPT-2",
                hint="skytrain export --to hf writes it for transformers, vLLM and everything that reads their folders",
            )
