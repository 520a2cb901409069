"""Hugging Face's config.json and ours: one family's words for the same numbers, both ways."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from ..config import ConfigError, DecoderConfig, DynamicRope, SkytrainError, build, nearest
from ..config.checks import check_decoder
from .sizes import model_file

ARCHITECTURES = {
    "gpt2": "GPT2LMHeadModel",
    "llama": "LlamaForCausalLM",
    "mistral": "MistralForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
    "gemma2": "Gemma2ForCausalLM",
    "exaone": "ExaoneForCausalLM",
}
TIED_BY_DEFAULT = ("gpt2", "gemma2")  # where config.json does not say


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
    values = {
        **model_file(f"_{family}"),
        **_READERS[family](data),
        "vocab_size": _need(data, "vocab_size"),
        "tied_head": data.get("tie_word_embeddings", family in TIED_BY_DEFAULT),
        "name": name,
        "pad_vocab_to": pad_vocab_to,
    }
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
    ours, theirs = (dataclasses.asdict(explicit(each)) for each in (config, again))
    for field, value in ours.items():
        if field not in ("dropout", "weights") and theirs[field] != value:
            raise ConfigError(
                f"model.{field}",
                f"{value!r} has no form in Hugging Face's {ARCHITECTURES[config.family]}, which means {theirs[field]!r}",
                hint="such a model trains and generates here, but cannot be exported as this family",
            )
    return written


def explicit(config: DecoderConfig) -> DecoderConfig:
    """The same decoder with every size said outright."""
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
        "max_length": _need(data, "n_positions", "max_position_embeddings"),
        "dropout": data.get("resid_pdrop", 0.0),
        "norm_eps": data.get("layer_norm_epsilon", 1e-5),
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


def _read_rotary(data: Mapping[str, Any]) -> dict[str, Any]:
    """What Llama and all that grew from it have in common."""
    _refuse(data, hidden_act="silu", attention_bias=False, mlp_bias=False, partial_rotary_factor=1.0)
    # transformers 5 writes `rope_parameters`; earlier ones `rope_theta` and, where positions are stretched, `rope_scaling`.
    rope = data.get("rope_parameters") or {"rope_theta": data.get("rope_theta"), **(data.get("rope_scaling") or {})}
    length = _need(data, "max_position_embeddings")
    scaling = _read_scaling(rope, length)
    values = {
        "layers": _need(data, "num_hidden_layers", "num_layers"),
        "width": _need(data, "hidden_size"),
        "heads": _need(data, "num_attention_heads"),
        "kv_heads": data.get("num_key_value_heads"),
        "head_size": data.get("head_dim"),
        "mlp_width": _need(data, "intermediate_size"),
        "max_length": round(length * scaling["factor"]) if scaling and scaling["kind"] == "dynamic" else length,
        "norm_eps": _need(data, "rms_norm_eps", "layer_norm_epsilon"),
        "rope_scaling": scaling,
    }
    return {**values, "rope_theta": rope["rope_theta"]} if rope.get("rope_theta") is not None else values


def _read_scaling(rope: Mapping[str, Any], length: int) -> dict[str, Any] | None:
    kind = rope.get("rope_type", rope.get("type", "default"))
    original = rope.get("original_max_position_embeddings", length)
    if kind == "default":
        return None
    if kind == "linear":
        return {"kind": kind, "factor": rope["factor"]}
    if kind == "dynamic":
        return {"kind": kind, "factor": rope["factor"], "original_length": original}
    if kind == "llama3":
        words = ("factor", "low_freq_factor", "high_freq_factor")
        return {"kind": kind, **{word: rope[word] for word in words}, "original_length": original}
    if kind == "yarn":
        _refuse(rope, mscale=None, mscale_all_dim=None, truncate=True, attention_factor=None)
        betas = {"beta_fast": rope.get("beta_fast") or 32, "beta_slow": rope.get("beta_slow") or 1}
        return {"kind": kind, "factor": rope["factor"], **betas, "original_length": original}
    raise SkytrainError(
        f"config.json: rotary positions of type {kind!r} are not supported (linear, dynamic, llama3 and yarn are)"
    )


def _write_rotary(config: DecoderConfig) -> dict[str, Any]:
    scaling = config.rope_scaling
    length = scaling.original_length if isinstance(scaling, DynamicRope) else config.max_length
    words = dataclasses.asdict(scaling) if scaling else {}
    if words:
        words["rope_type"] = words.pop("kind")
        words = {
            ("original_max_position_embeddings" if word == "original_length" else word): value
            for word, value in words.items()
        }
    return {
        "num_hidden_layers": config.layers,
        "hidden_size": config.width,
        "num_attention_heads": config.heads,
        "num_key_value_heads": config.groups,
        "head_dim": config.head_width,
        "intermediate_size": config.hidden_width,
        "max_position_embeddings": length,
        "rms_norm_eps": config.norm_eps,
        "rope_theta": config.rope_theta,
        "rope_scaling": words or None,
        "hidden_act": "silu",
    }


def _read_mistral(data: Mapping[str, Any]) -> dict[str, Any]:
    return {**_read_rotary(data), "window": data.get("sliding_window")}


def _write_mistral(config: DecoderConfig) -> dict[str, Any]:
    return {**_write_rotary(config), "sliding_window": config.window}


def _read_qwen(data: Mapping[str, Any]) -> dict[str, Any]:
    _refuse(data, use_sliding_window=False)
    return _read_rotary(data)


def _read_gemma2(data: Mapping[str, Any]) -> dict[str, Any]:
    _refuse(data, hidden_activation="gelu_pytorch_tanh", use_bidirectional_attention=None)
    plain = _read_rotary({**data, "hidden_act": "silu"})  # an unused word in Gemma's files
    kinds = data.get("layer_types") or [
        ("sliding_attention", "full_attention")[layer % 2] for layer in range(plain["layers"])
    ]
    if any((kind == "sliding_attention") != (layer % 2 == 0) for layer, kind in enumerate(kinds)):
        raise SkytrainError("config.json: layer_types is not every other layer with a window, from the first")
    scalar = data.get("query_pre_attn_scalar", 256)
    return {
        **plain,
        "window": data.get("sliding_window"),
        "attention_scale": None if scalar == (data.get("head_dim") or 256) else scalar**-0.5,
        "attention_softcap": data.get("attn_logit_softcapping"),
        "logit_softcap": data.get("final_logit_softcapping"),
    }


def _write_gemma2(config: DecoderConfig) -> dict[str, Any]:
    scalar = config.head_width if config.attention_scale is None else config.attention_scale**-2
    return {
        **_write_rotary(config),
        "hidden_act": "gelu_pytorch_tanh",
        "hidden_activation": "gelu_pytorch_tanh",
        "query_pre_attn_scalar": round(scalar),  # Gemma's configuration knows whole numbers only
        "sliding_window": config.window,
        "attn_logit_softcapping": config.attention_softcap,
        "final_logit_softcapping": config.logit_softcap,
    }


def _read_exaone(data: Mapping[str, Any]) -> dict[str, Any]:
    _refuse(data, activation_function="silu")
    return _read_rotary(data)


def _write_exaone(config: DecoderConfig) -> dict[str, Any]:
    words = _write_rotary(config)
    renamed = {"num_layers": words.pop("num_hidden_layers"), "layer_norm_epsilon": words.pop("rms_norm_eps")}
    return {**words, **renamed, "activation_function": words.pop("hidden_act")}


_READERS = {
    "gpt2": _read_gpt2,
    "llama": _read_rotary,
    "mistral": _read_mistral,
    "qwen2": _read_qwen,
    "qwen3": _read_qwen,
    "gemma2": _read_gemma2,
    "exaone": _read_exaone,
}
_WRITERS = {
    "gpt2": _write_gpt2,
    "llama": _write_rotary,
    "mistral": _write_mistral,
    "qwen2": _write_rotary,
    "qwen3": _write_rotary,
    "gemma2": _write_gemma2,
    "exaone": _write_exaone,
}
