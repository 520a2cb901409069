"""Check that a model configuration matches the weights it is loaded with. Does not import torch.

The same tensors with a different RoPE base or soft cap are a different model, so every field of the decoder
configuration is compared except those in `NOT_COMPARED`.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..config import ConfigError, DecoderConfig, ModelConfig, SkytrainError
from .hf_form import explicit, read_hf_config

NOT_COMPARED = {
    "name": "a label",
    "family": "the names of the tensors, which the folder's own config.json decides; the other fields are the arithmetic",
    "pad_vocab_to": "padding is never predicted",
    "dropout": "a choice of the training",
    "weights": "where they are",
    "base_width": "part of the parametrization, which is compared",
    "base_layers": "part of the parametrization, which is compared",
}
NOT_ADOPTED = ("pad_vocab_to", "dropout", "weights", "parametrization", "base_width", "base_layers")


def read_hf_decoder(folder: Path, *, pad_vocab_to: int = 128, max_length: int | None = None) -> DecoderConfig:
    """Return the decoder configuration that a folder's config.json describes."""
    try:
        data: dict[str, Any] = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
        raise SkytrainError(f"{folder} is not a Hugging Face model: config.json cannot be read ({error})") from None
    return read_hf_config(data, name=folder.resolve().name, pad_vocab_to=pad_vocab_to, max_length=max_length)


def adopt_model(source: str | None) -> tuple[str, dict[str, Any]] | None:
    """Return the path of a folder's config.json and the `model` settings it implies.

    Training choices (`NOT_ADOPTED`) are left out. None if `source` is not a folder with a config.json.
    """
    if source is None or not (Path(source) / "config.json").is_file():
        return None
    values = dataclasses.asdict(read_hf_decoder(Path(source)))
    return f"{source}/config.json", {name: value for name, value in values.items() if name not in NOT_ADOPTED}


def check_model(config: ModelConfig, start: str | None = None) -> None:
    """Raise ConfigError if a decoder configuration does not match the folder it starts from.

    The folder is `start` if given, otherwise `config.weights`. Other kinds of model are not checked.
    """
    source = start or (config.weights if isinstance(config, DecoderConfig) else None)
    if isinstance(config, DecoderConfig) and source is not None and (Path(source) / "config.json").is_file():
        check_agreement(config, read_hf_decoder(Path(source)), source)


def check_agreement(config: DecoderConfig, found: DecoderConfig, source: str) -> None:
    """Raise ConfigError, with one line per field, if the configuration does not match that of the weights."""
    wanted, there = explicit(config), explicit(found)
    # With rotary positions max_length only limits the sequence length; no weight depends on it.
    free = {*NOT_COMPARED, *(() if found.positions == "learned" else ("max_length",))}
    lines = [
        f"  model.{field.name}: configured {_written(getattr(wanted, field.name))}, the weights have"
        f" {_written(getattr(there, field.name))}; set {_override(field.name, getattr(there, field.name))}"
        for field in dataclasses.fields(DecoderConfig)
        if field.name not in free and getattr(wanted, field.name) != getattr(there, field.name)
    ]
    if lines:
        problem = f"the configuration of model {config.name} is not that of the weights in {source}\n" + "\n".join(
            lines
        )
        hint = "or leave out model=NAME and these settings: they are then taken from the folder's config.json"
        raise ConfigError("model.weights", problem, hint=hint if Path(source).is_dir() else None)


def _written(value: Any) -> str:
    """Format a value as it is typed on the command line."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        value = dataclasses.asdict(value)
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{key}: {_written(each)}" for key, each in value.items()) + "}"
    if isinstance(value, bool) or value is None:
        return {True: "true", False: "false", None: "null"}[value]
    return str(value)


def _override(name: str, value: Any) -> str:
    word = f"model.{name}={_written(value)}"
    return f"'{word}'" if " " in word else word
