"""The decoder that a Hugging Face config.json describes."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from ..config import DecoderConfig, SkytrainError, build, check_decoder
from .hf_defaults import ROPE_THETA, family_of, with_defaults
from .sizes import model_file
from .yarn import yarn_magnitude

SILU = ("silu", "swish")  # two names of one function


def read_hf_config(
    data: Mapping[str, Any], *, name: str, pad_vocab_to: int, max_length: int | None = None
) -> DecoderConfig:
    """The decoder that a config.json describes. `max_length` shortens the sequences it is built for (rotary positions only)."""
    family = family_of(data, name)
    data = with_defaults(family, data)
    values = {
        **model_file(f"_{family}"),
        **_READERS[family](data),
        "vocab_size": _need(data, "vocab_size"),
        "tied_head": data["tie_word_embeddings"],
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


def explicit(config: DecoderConfig) -> DecoderConfig:
    """The same decoder with every value that has a default said outright."""
    return dataclasses.replace(
        config,
        kv_heads=config.groups,
        head_size=config.head_width,
        mlp_width=config.hidden_width,
        attention_scale=config.attention_scale or config.head_width**-0.5,
        window_every=config.window_every if config.window else 1,
    )


def _need(data: Mapping[str, Any], name: str) -> Any:
    if data.get(name) is None:
        raise SkytrainError(f"config.json has no {name!r}")
    return data[name]


def _refuse(data: Mapping[str, Any], **supported: Any) -> None:
    """Raise where a setting that the decoder does not have is in use; a tuple lists several that are the same to it."""
    for name, values in supported.items():
        choices = values if isinstance(values, tuple) else (values,)
        if name in data and data[name] not in choices:
            raise SkytrainError(
                f"config.json: {name}={data[name]!r} is not supported by the built-in decoder (only {choices[0]!r})\n"
                "  model=hf model.name=FOLDER runs any architecture"
            )


def _read_gpt2(data: Mapping[str, Any]) -> dict[str, Any]:
    _refuse(
        data,
        scale_attn_weights=True,
        scale_attn_by_inverse_layer_idx=False,
        add_cross_attention=False,
        activation_function=("gelu_new", "gelu_pytorch_tanh"),
    )
    return {
        "layers": _need(data, "n_layer"),
        "width": _need(data, "n_embd"),
        "heads": _need(data, "n_head"),
        "mlp_width": data["n_inner"],
        "max_length": _need(data, "n_positions"),
        "dropout": data["resid_pdrop"],
        "norm_eps": data["layer_norm_epsilon"],
    }


def _read_rotary(data: Mapping[str, Any]) -> dict[str, Any]:
    """What Llama and all that grew from it have in common."""
    _refuse(data, attention_bias=False, mlp_bias=False)
    length = _need(data, "max_position_embeddings")
    rope = _rope_parameters(data)
    scaling = _read_scaling(rope, length, data.get("original_max_position_embeddings"))
    return {
        "layers": _need(data, "num_hidden_layers"),
        "width": _need(data, "hidden_size"),
        "heads": _need(data, "num_attention_heads"),
        "kv_heads": data["num_key_value_heads"],
        "head_size": data.get("head_dim"),
        "mlp_width": _need(data, "intermediate_size"),
        "max_length": round(length * scaling["factor"]) if scaling and scaling["kind"] == "dynamic" else length,
        "norm_eps": _need(data, "rms_norm_eps"),
        "rope_theta": rope["rope_theta"],
        "rope_scaling": scaling,
        "window": None,
        "window_every": 1,
    }


def _rope_parameters(data: Mapping[str, Any]) -> dict[str, Any]:
    """`rope_parameters` as transformers 5 writes them, or the `rope_theta` and `rope_scaling` of earlier versions.

    Where a file has both, transformers takes the dictionary from `rope_scaling` and what that leaves out from the file itself.
    """
    rope = dict(data.get("rope_scaling") or data.get("rope_parameters") or {})
    rope.setdefault("rope_theta", data.get("rope_theta", ROPE_THETA))
    rope.setdefault("partial_rotary_factor", data.get("partial_rotary_factor"))
    _need(rope, "rope_theta")
    _refuse(rope, partial_rotary_factor=(1.0, None))
    if any(isinstance(value, Mapping) for value in rope.values()):
        raise SkytrainError(
            "config.json: rotary positions that differ from layer to layer are not supported by the built-in decoder\n"
            "  model=hf model.name=FOLDER runs any architecture"
        )
    return rope


def _read_scaling(rope: Mapping[str, Any], length: int, original: int | None) -> dict[str, Any] | None:
    """`original`: the length before stretching, where config.json has it outside the dictionary."""
    kind = rope.get("rope_type", rope.get("type", "default"))
    if kind == "default":
        return None
    if kind == "linear":
        return {"kind": kind, "factor": _need(rope, "factor")}
    if kind == "dynamic":
        # transformers stretches from max_position_embeddings on, whatever original_max_position_embeddings says.
        return {"kind": kind, "factor": _need(rope, "factor"), "original_length": length}
    original = original or rope.get("original_max_position_embeddings") or length
    if kind == "llama3":
        words = ("factor", "low_freq_factor", "high_freq_factor")
        return {"kind": kind, **{word: _need(rope, word) for word in words}, "original_length": original}
    if kind == "yarn":
        return _read_yarn(rope, length, original)
    raise SkytrainError(
        f"config.json: rotary positions of type {kind!r} are not supported (linear, dynamic, llama3 and yarn are)\n"
        "  model=hf model.name=FOLDER runs any architecture"
    )


def _read_yarn(rope: Mapping[str, Any], length: int, original: int) -> dict[str, Any]:
    _refuse(rope, truncate=True)
    factor = rope.get("factor") or length / original
    magnitude = rope.get("attention_factor")
    if magnitude is None and rope.get("mscale") and rope.get("mscale_all_dim"):
        magnitude = yarn_magnitude(factor, rope["mscale"]) / yarn_magnitude(factor, rope["mscale_all_dim"])
    if magnitude is not None and magnitude != yarn_magnitude(factor):
        raise SkytrainError(
            f"config.json: YaRN with an attention factor of {magnitude} is not supported by the built-in decoder"
            f" (only {yarn_magnitude(factor)}, which follows from factor {factor})\n  model=hf model.name=FOLDER runs any architecture"
        )
    betas = {"beta_fast": rope.get("beta_fast") or 32, "beta_slow": rope.get("beta_slow") or 1}
    return {"kind": "yarn", "factor": factor, **betas, "original_length": original}


def _read_windows(kinds: Sequence[str], window: int | None) -> dict[str, Any]:
    """A kind for each layer as the decoder's `window` and `window_every`."""
    slides = [kind == "sliding_attention" for kind in kinds]
    if not any(slides) or window is None:
        return {"window": None, "window_every": 1}
    for every in range(1, len(slides) + 1):
        if slides == [layer % every == 0 for layer in range(len(slides))]:
            return {"window": window, "window_every": every}
    raise SkytrainError(
        "config.json: layer_types is not a window in every n-th layer, from the first\n"
        "  model=hf model.name=FOLDER runs any architecture"
    )


def _read_llama(data: Mapping[str, Any]) -> dict[str, Any]:
    _refuse(data, hidden_act=SILU)
    return _read_rotary(data)


def _read_mistral(data: Mapping[str, Any]) -> dict[str, Any]:
    _refuse(data, hidden_act=SILU)
    return {**_read_rotary(data), "window": data["sliding_window"]}


def _read_qwen(data: Mapping[str, Any]) -> dict[str, Any]:
    _refuse(data, hidden_act=SILU)
    plain = _read_rotary(data)
    window = data["sliding_window"] if data["use_sliding_window"] else None
    sliding_from = data["max_window_layers"] if window else plain["layers"]
    kinds = data["layer_types"] or [
        "sliding_attention" if layer >= sliding_from else "full_attention" for layer in range(plain["layers"])
    ]
    if window is None and "sliding_attention" in kinds:
        raise SkytrainError("config.json: layer_types has sliding_attention, but use_sliding_window is off")
    return {**plain, **_read_windows(kinds, window)}


def _read_gemma2(data: Mapping[str, Any]) -> dict[str, Any]:
    _refuse(data, hidden_activation="gelu_pytorch_tanh", use_bidirectional_attention=(None, False))
    plain = _read_rotary(data)
    kinds = data["layer_types"] or [
        ("sliding_attention", "full_attention")[layer % 2] for layer in range(plain["layers"])
    ]
    return {
        **plain,
        **_read_windows(kinds, data["sliding_window"]),
        "attention_scale": data["query_pre_attn_scalar"] ** -0.5,
        "attention_softcap": data["attn_logit_softcapping"],
        "logit_softcap": data["final_logit_softcapping"],
    }


def _read_exaone(data: Mapping[str, Any]) -> dict[str, Any]:
    _refuse(data, activation_function=SILU)
    renamed = {"num_hidden_layers": data["num_layers"], "rms_norm_eps": data["layer_norm_epsilon"]}
    width = data["intermediate_size"] or 4 * _need(data, "hidden_size")
    return _read_rotary({**data, **renamed, "intermediate_size": width})


_READERS = {
    "gpt2": _read_gpt2,
    "llama": _read_llama,
    "mistral": _read_mistral,
    "qwen2": _read_qwen,
    "qwen3": _read_qwen,
    "gemma2": _read_gemma2,
    "exaone": _read_exaone,
}
