"""Hugging Face's config.json and ours: one family's words for the same numbers, both ways."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping
from importlib import resources
from typing import Any

from omegaconf import OmegaConf

from ..config import ConfigError, DecoderConfig, SkytrainError, build, nearest
from ..config.checks import check_decoder

ARCHITECTURES = {
    "gpt2": "GPT2LMHeadModel",
}


def read_hf_config(
    data: Mapping[str, Any], *, name: str, pad_vocab_to: int, max_length: int | None = None
) -> DecoderConfig:
    """The decoder that a config.json describes. `max_length` shortens the sequences it is built for (rotary positions only)."""
    family = data.get("model_type")
    if family not in ARCHITECTURES:
        guess = nearest(str(family), ARCHITECTURES)
        raise SkytrainError(
            f"{name}: the built-in decoder has no architecture {family!r} (model_type in config.json); it has {', '.join(ARCHITECTURES)}"
            + (f"\n  did you mean {guess}?" if guess else "")
        )
    values = {**family_traits(family), **_READERS[family](data)}
    values.update(name=name, pad_vocab_to=pad_vocab_to)
    if max_length is not None:
        if values["positions"] == "learned" and max_length != values["max_length"]:
            raise SkytrainError(
                f"{name}: its position table has {values['max_length']} rows; it cannot be built for max_length {max_length}"
            )
        values["max_length"] = max_length
    config: DecoderConfig = build(DecoderConfig, values, key="config.json")
    check_decoder(config)
    return config


def hf_config(config: DecoderConfig, *, eot: int | None = None, dtype: str = "float32") -> dict[str, Any]:
    """config.json of this decoder; raises where Hugging Face's architecture cannot say what the decoder does."""
    written = {
        "architectures": [ARCHITECTURES[config.family]],
        "model_type": config.family,
        **_WRITERS[config.family](config),
        "vocab_size": config.vocab_size,
        "tie_word_embeddings": config.tied_head,
        "bos_token_id": eot,
        "eos_token_id": eot,
        "initializer_range": 0.02,
        "dtype": dtype,
        "torch_dtype": dtype,  # what readers before transformers 5 look for
        "use_cache": True,
    }
    again = read_hf_config(written, name=config.name, pad_vocab_to=config.pad_vocab_to)
    ours, theirs = (dataclasses.asdict(_explicit(each)) for each in (config, again))
    for field, value in ours.items():
        if field != "dropout" and theirs[field] != value:
            raise ConfigError(
                f"model.{field}",
                f"{value!r} has no form in Hugging Face's {ARCHITECTURES[config.family]}, which means {theirs[field]!r}",
                hint="such a model trains and generates here, but cannot be exported as this family",
            )
    return written


@functools.cache
def family_traits(family: str) -> dict[str, Any]:
    """What the family's configuration file sets for all its sizes."""

    def load(stem: str) -> dict[str, Any]:
        text = (resources.files("skytrain.config.groups") / "model" / f"{stem}.yaml").read_text(encoding="utf-8")
        values: Any = OmegaConf.to_container(OmegaConf.create(text), resolve=False)
        merged: dict[str, Any] = {}
        for base in values.pop("defaults", []):
            merged.update(load(base))
        return {**merged, **values}

    return load(f"_{family}")


def _explicit(config: DecoderConfig) -> DecoderConfig:
    return dataclasses.replace(
        config, kv_heads=config.groups, head_size=config.head_width, mlp_width=config.hidden_width
    )


def _need(data: Mapping[str, Any], *names: str) -> Any:
    """The value under the first of these names, as architectures renamed their settings over time."""
    for name in names:
        if data.get(name) is not None:
            return data[name]
    raise SkytrainError(f"config.json has no {names[0]!r}")


def _refuse(data: Mapping[str, Any], **expected: Any) -> None:
    """Raise where a setting that the decoder does not have is in use."""
    for name, value in expected.items():
        found = data.get(name, value)
        if found != value:
            raise SkytrainError(
                f"config.json: {name}={found!r} is not supported by the built-in decoder (only {value!r})\n  model=hf runs any architecture"
            )


def _read_gpt2(data: Mapping[str, Any]) -> dict[str, Any]:
    _refuse(data, scale_attn_weights=True, scale_attn_by_inverse_layer_idx=False, add_cross_attention=False)
    activation = data.get("activation_function", "gelu_new")
    if activation not in ("gelu_new", "gelu_pytorch_tanh"):
        raise SkytrainError(
            f"config.json: activation_function={activation!r} is not supported for gpt2 (only 'gelu_new')"
        )
    return {
        "layers": _need(data, "n_layer", "num_hidden_layers"),
        "width": _need(data, "n_embd", "hidden_size"),
        "heads": _need(data, "n_head", "num_attention_heads"),
        "mlp_width": data.get("n_inner"),
        "vocab_size": _need(data, "vocab_size"),
        "max_length": _need(data, "n_positions", "max_position_embeddings"),
        "dropout": data.get("resid_pdrop", 0.0),
        "norm_eps": data.get("layer_norm_epsilon", 1e-5),
        "tied_head": data.get("tie_word_embeddings", True),
    }


def _write_gpt2(config: DecoderConfig) -> dict[str, Any]:
    return {
        "n_layer": config.layers,
        "n_embd": config.width,
        "n_head": config.heads,
        "n_inner": config.mlp_width,
        "n_positions": config.max_length,
        "n_ctx": config.max_length,
        "activation_function": "gelu_new",
        "layer_norm_epsilon": config.norm_eps,
        "resid_pdrop": config.dropout,
        "embd_pdrop": config.dropout,
        "attn_pdrop": config.dropout,
    }


_READERS = {"gpt2": _read_gpt2}
_WRITERS = {"gpt2": _write_gpt2}
