"""A decoder's form in Hugging Face: the architecture that computes the same, and its config.json."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

from ..config import ConfigError, DecoderConfig, DynamicRope, Family, SkytrainError
from .hf_defaults import ARCHITECTURES
from .hf_reading import explicit, read_hf_config

# What config.json says nothing of (name, padding), or says in other words (dropout), or that decides nothing after training.
NO_FORM = ("name", "family", "pad_vocab_to", "dropout", "weights", "base_width", "base_layers")
WHOLE_HEADS = ("llama", "gemma2")  # transformers refuses these with a width that is no multiple of the heads


def hf_form(config: DecoderConfig) -> DecoderConfig:
    """The decoder under a family whose Hugging Face architecture computes the same: its own, else the first that does.

    EXAONE becomes Llama so, and Llama with a head size of its own Mistral without a window. Raises where there is none.
    """
    own = [config.family] if config.family in _WRITERS else []
    problems = []
    for family in dict.fromkeys([*own, *_WRITERS]):
        form = dataclasses.replace(config, family=family)
        problem = _problem(form)
        if problem is None:
            return form
        problems.append(problem)
    raise problems[0]


def hf_config(config: DecoderConfig, *, eot: int | None = None, dtype: str = "float32") -> dict[str, Any]:
    """config.json of this decoder; raises where no architecture of Hugging Face's computes what the decoder does."""
    return {
        **_written(hf_form(config)),
        "bos_token_id": eot,
        "eos_token_id": eot,
        "initializer_range": 0.02,
        "dtype": dtype,
        "torch_dtype": dtype,  # what readers before transformers 5 look for
        "use_cache": True,
    }


def _problem(form: DecoderConfig) -> ConfigError | None:
    """Why transformers would not load this decoder as its family, or would compute something else."""
    architecture = ARCHITECTURES[form.family]
    hint = "such a model trains and generates here, but cannot be exported to Hugging Face"
    if form.family in WHOLE_HEADS and form.width % form.heads:
        problem = (
            f"{form.width} is no multiple of the {form.heads} heads, and transformers refuses such a {architecture}"
        )
        return ConfigError("model.width", problem, hint=hint)
    if form.family == "gemma2" and form.window is None:
        return ConfigError("model.window", f"null has no form in Hugging Face's {architecture}", hint=hint)
    try:
        again = read_hf_config(_written(form), name=form.name, pad_vocab_to=form.pad_vocab_to)
    except SkytrainError as error:  # what this family cannot say at all, as GPT-2's cannot a head size
        return ConfigError("model.family", f"has no form in Hugging Face's {architecture}: {error}", hint=hint)
    ours, theirs = (dataclasses.asdict(explicit(each)) for each in (form, again))
    # Dynamic positions have no longest sequence in config.json, only the length that they stretch from.
    ignored = (*NO_FORM, "max_length") if isinstance(form.rope_scaling, DynamicRope) else NO_FORM
    for field, value in ours.items():
        if field not in ignored and theirs[field] != value:
            problem = f"{value!r} has no form in Hugging Face's {architecture}, which means {theirs[field]!r}"
            return ConfigError(f"model.{field}", problem, hint=hint)
    return None


def _written(form: DecoderConfig) -> dict[str, Any]:
    return {
        "architectures": [ARCHITECTURES[form.family]],
        "model_type": form.family,
        **_WRITERS[form.family](form),
        "vocab_size": form.vocab_size,
        "tie_word_embeddings": form.tied_head,
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


def _write_rotary(config: DecoderConfig) -> dict[str, Any]:
    scaling = config.rope_scaling
    return {
        "num_hidden_layers": config.layers,
        "hidden_size": config.width,
        "num_attention_heads": config.heads,
        "num_key_value_heads": config.groups,
        "head_dim": config.head_width,
        "intermediate_size": config.hidden_width,
        "max_position_embeddings": scaling.original_length if isinstance(scaling, DynamicRope) else config.max_length,
        "rms_norm_eps": config.norm_eps,
        # The words of transformers 4, which version 5 reads too.
        "rope_theta": config.rope_theta,
        "rope_scaling": _write_scaling(config),
        "hidden_act": "silu",
    }


def _write_scaling(config: DecoderConfig) -> dict[str, Any] | None:
    if config.rope_scaling is None:
        return None
    words = dataclasses.asdict(config.rope_scaling)
    words["rope_type"] = words.pop("kind")
    if "original_length" in words:
        original = words.pop("original_length")
        if not isinstance(config.rope_scaling, DynamicRope):  # theirs is max_position_embeddings
            words["original_max_position_embeddings"] = original
    return words


def _write_mistral(config: DecoderConfig) -> dict[str, Any]:
    return {**_write_rotary(config), "sliding_window": config.window}


def _layer_types(config: DecoderConfig) -> list[str]:
    return ["sliding_attention" if config.window_of(layer) else "full_attention" for layer in range(config.layers)]


def _write_qwen(config: DecoderConfig) -> dict[str, Any]:
    plain = {**_write_rotary(config), "use_sliding_window": config.window is not None}
    if config.window is None:
        return plain
    return {**plain, "sliding_window": config.window, "max_window_layers": 0, "layer_types": _layer_types(config)}


def _write_gemma2(config: DecoderConfig) -> dict[str, Any]:
    scalar = config.head_width if config.attention_scale is None else config.attention_scale**-2
    return {
        **_write_rotary(config),
        "hidden_act": "gelu_pytorch_tanh",
        "hidden_activation": "gelu_pytorch_tanh",
        "query_pre_attn_scalar": round(scalar),  # Gemma's configuration knows whole numbers only
        "sliding_window": config.window,
        "layer_types": _layer_types(config),
        "attn_logit_softcapping": config.attention_softcap,
        "final_logit_softcapping": config.logit_softcap,
    }


# Without EXAONE: its code lies on the hub, and does not run with transformers 5.
_WRITERS: Mapping[Family, Callable[[DecoderConfig], dict[str, Any]]] = {
    "llama": _write_rotary,
    "mistral": _write_mistral,
    "qwen2": _write_qwen,
    "qwen3": _write_qwen,
    "gemma2": _write_gemma2,
    "gpt2": _write_gpt2,
}
