"""The model files of the configuration as decoders, without a run around them. No torch."""

from __future__ import annotations

import functools
from importlib import resources
from typing import Any

from omegaconf import OmegaConf

from ..config import DecoderConfig, SkytrainError, build, nearest

GPT2_VOCABULARY = 50257  # for files that take the tokenizer's vocabulary, whatever it is


def size_names() -> list[str]:
    """Every decoder that `model=` can choose, by family and then by size as the files are named."""
    return [stem for stem in _stems() if "layers" in model_file(stem)]


def size_config(name: str) -> DecoderConfig:
    """The decoder of one file; GPT-2's vocabulary where the file leaves it to the tokenizer."""
    if name not in size_names():
        guess = nearest(name, size_names())
        raise SkytrainError(f"{name!r} is not a model of the configuration" + (f"\n  did you mean {guess}?" if guess else ""))
    values = dict(model_file(name))
    if not isinstance(values["vocab_size"], int):
        values["vocab_size"] = GPT2_VOCABULARY
    config: DecoderConfig = build(DecoderConfig, values, key="model")
    return config


@functools.cache
def model_file(stem: str) -> dict[str, Any]:
    """What a file sets, with the files it builds on beneath it."""
    text = (resources.files("skytrain.config.groups") / "model" / f"{stem}.yaml").read_text(encoding="utf-8")
    values: Any = OmegaConf.to_container(OmegaConf.create(text), resolve=False)
    merged: dict[str, Any] = {}
    for base in values.pop("defaults", []):
        merged.update(model_file(base))
    return {**merged, **values}


def _stems() -> list[str]:
    folder = resources.files("skytrain.config.groups") / "model"
    return sorted(path.name.removesuffix(".yaml") for path in folder.iterdir() if path.name.endswith(".yaml") and not path.name.startswith("_"))
