"""Whether a configuration computes what given weights were trained to compute. No torch.

Weights mean something only together with the arithmetic they were trained with: the same tensors under another RoPE base
or another soft cap are another model. So every field of the decoder is compared, but for those listed here.
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
    """The decoder that a folder's config.json describes."""
    try:
        data: dict[str, Any] = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
        raise SkytrainError(f"{folder} is not a Hugging Face model: config.json cannot be read ({error})") from None
    return read_hf_config(data, name=folder.resolve().name, pad_vocab_to=pad_vocab_to, max_length=max_length)


def adopt_model(source: str | None) -> tuple[str, dict[str, Any]] | None:
    """config.json of a folder and its decoder as settings of the group `model`, without those that the training chooses."""
    if source is None or not (Path(source) / "config.json").is_file():
        return None
    values = dataclasses.asdict(read_hf_decoder(Path(source)))
    return f"{source}/config.json", {name: value for name, value in values.items() if name not in NOT_ADOPTED}


def check_model(config: ModelConfig, start: str | None = None) -> None:
    """Raise ConfigError where a decoder is not that of the folder it starts from: `start`, else its own `weights`."""
    source = start or (config.weights if isinstance(config, DecoderConfig) else None)
    if isinstance(config, DecoderConfig) and source is not None and (Path(source) / "config.json").is_file():
        check_agreement(config, read_hf_decoder(Path(source)), source)


def check_agreement(config: DecoderConfig, found: DecoderConfig, source: str) -> None:
    """Raise ConfigError, with a line for each field, where the configuration is not the weights' own."""
    wanted, there = explicit(config), explicit(found)
    # The length of rotary positions is only the longest sequence that may be asked for.
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
    """A value as it is typed on the command line."""
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
