"""The models of the configuration's group `model`, without a run. No torch."""

from __future__ import annotations

import functools
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from importlib import resources
from typing import Any

from omegaconf import OmegaConf

from ..config import DecoderConfig, SkytrainError, build, nearest
from ..planning import ADAMW, decoder_flops_per_token, decoder_size, train_bytes_per_parameter

GPT2_VOCABULARY = 50257  # for files that take the tokenizer's vocabulary, whatever it is


def size_names() -> list[str]:
    """Return the names of all decoders that `model=` can choose, by family and then by size as the files are named."""
    return [stem for stem in _stems() if "layers" in model_file(stem)]


def size_config(name: str, vocab_size: int = GPT2_VOCABULARY) -> DecoderConfig:
    """Return the decoder of one file, with this vocabulary where the file leaves it to the tokenizer."""
    if name not in size_names():
        raise SkytrainError(f"{name!r} is not a model of the configuration\n  {_way_out(name, size_names())}")
    values = dict(model_file(name))
    if not isinstance(values["vocab_size"], int):
        values["vocab_size"] = vocab_size
    config: DecoderConfig = build(DecoderConfig, values, key="model")
    return config


@dataclass(frozen=True)
class Size:
    """One row of `skytrain models`."""

    name: str
    family: str
    vocab_size: int
    parameters: int
    active_parameters: int  # those that one token uses
    flops_per_token: int  # forward and backward
    state_bytes: int  # weights, gradients and AdamW's two moments in float32
    max_length: int


def describe_sizes(wanted: Sequence[str], sequence_length: int, vocab_size: int = GPT2_VOCABULARY) -> list[Size]:
    """Describe all sizes, or those whose name or family is in `wanted`; the smallest of each family first."""
    configs = [size_config(name, vocab_size) for name in size_names()]
    known = {word for config in configs for word in (config.name, config.family)}
    for word in wanted:
        if word not in known:
            raise SkytrainError(f"{word!r} is neither a family nor a model\n  {_way_out(word, known)}")
    sizes = [
        Size(
            name=config.name,
            family=config.family,
            vocab_size=config.vocab_size,
            parameters=decoder_size(config).parameters,
            active_parameters=decoder_size(config).active_parameters,
            flops_per_token=decoder_flops_per_token(config, min(sequence_length, config.max_length)),
            state_bytes=round(train_bytes_per_parameter(config, ADAMW) * decoder_size(config).parameters),
            max_length=config.max_length,
        )
        for config in configs
        if not wanted or config.name in wanted or config.family in wanted
    ]
    return sorted(sizes, key=lambda size: (size.family, size.parameters))


def _way_out(word: str, known: Collection[str]) -> str:
    guess = nearest(word, known)
    families = dict.fromkeys(model_file(name)["family"] for name in size_names())
    if guess:
        return f"did you mean {guess}?"
    return f"families: {', '.join(families)}; `skytrain models` lists every size, model=hf trains any other model"


@functools.cache
def model_file(stem: str) -> dict[str, Any]:
    """Return the settings of a file, merged over those of its `defaults`."""
    text = (resources.files("skytrain.config.groups") / "model" / f"{stem}.yaml").read_text(encoding="utf-8")
    values: Any = OmegaConf.to_container(OmegaConf.create(text), resolve=False)
    bases = [OmegaConf.create(model_file(base)) for base in values.pop("defaults", [])]
    merged: Any = OmegaConf.to_container(OmegaConf.merge(*bases, values), resolve=False)
    return merged


def _stems() -> list[str]:
    folder = resources.files("skytrain.config.groups") / "model"
    return sorted(
        path.name.removesuffix(".yaml")
        for path in folder.iterdir()
        if path.name.endswith(".yaml") and not path.name.startswith("_")
    )
