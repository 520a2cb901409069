"""Convert between decoder configurations and Hugging Face's config.json. Does not import torch."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from ..config import (
    MOST_LAYERS,
    ConfigError,
    DecoderConfig,
    DynamicRope,
    SkytrainError,
    build,
    check_decoder,
    flatten,
    nearest,
)
from .families import FAMILIES, ModelFamily, UnsupportedArchitecture
from .families._family import need
from .sizes import model_file

LAYERS = ("num_hidden_layers", "n_layer", "num_layers", "first_k_dense_replace")  # families make lists of them
MOST_OF_ALL = 1 << 31  # of widths, positions and tokens
# Fields that config.json lacks (name, padding), represents differently (dropout), or that only matter in training.
NOT_IN_CONFIG = ("name", "family", "pad_vocab_to", "dropout", "weights", "base_width", "base_layers")


def read_hf_config(
    data: Mapping[str, Any], *, name: str, pad_vocab_to: int, max_length: int | None = None
) -> DecoderConfig:
    """Return the decoder configuration that a config.json describes.

    `max_length` overrides the maximum sequence length; with learned positions a different length raises.
    """
    family = _family_of(data, name)
    for key, value in data.items():  # whoever made the folder decides them, and much is counted up to them
        if isinstance(value, int) and value > (MOST_LAYERS if key in LAYERS else MOST_OF_ALL):
            raise SkytrainError(f"{name}: config.json has {key!r:.40} {value!r:.40}, more than any model has")
    if data.get("quantization_config"):
        method = data["quantization_config"].get("quant_method", "an unknown method")
        raise UnsupportedArchitecture(
            f"{name}: its weights are quantized by {method}, and the built-in decoder reads float32, float16 and bfloat16;"
            " save a copy in bfloat16 (transformers: from_pretrained(..., dtype='bfloat16'), dequantize, save_pretrained)"
        )
    data = family.with_defaults(data)
    shared = model_file(f"_{family.name}")
    found = family.read(data)
    if found.get("experts"):  # config.json does not say how they are balanced
        found["experts"] = {**shared["experts"], **found["experts"]}
    values = {
        **shared,
        **found,
        "vocab_size": need(data, "vocab_size"),
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


def hf_config(
    config: DecoderConfig, *, eot: int | None = None, bos: int | None = None, dtype: str = "float32"
) -> dict[str, Any]:
    """Return the config.json of this decoder; raises ConfigError if no Hugging Face architecture is equivalent."""
    return {
        **_written(hf_form(config)),
        "bos_token_id": eot if bos is None else bos,
        "eos_token_id": eot,
        # Some architectures default to an id outside a small vocabulary, and our tokenizers have no padding token.
        "pad_token_id": None,
        "initializer_range": 0.02,
        "dtype": dtype,
        "torch_dtype": dtype,  # the key that transformers read before version 5
        "use_cache": True,
    }


def hf_form(config: DecoderConfig) -> DecoderConfig:
    """Return the same decoder under a family whose Hugging Face architecture is equivalent.

    Its own family is preferred, then the first one that fits: EXAONE becomes Llama, and Llama with a width that is not
    a multiple of its heads becomes Mistral without a window. Raises ConfigError if no family fits.
    """
    own = FAMILIES[config.family].export_as or config.family
    problems = []
    for family in dict.fromkeys([own, *FAMILIES]):
        if FAMILIES[family].write is None:
            continue
        form = dataclasses.replace(config, family=family)
        problem = _export_problem(form)
        if problem is None:
            return form
        problems.append(problem)
    raise problems[0]


def explicit(config: DecoderConfig) -> DecoderConfig:
    """Fill in the derived values, so that two decoder configurations can be compared field by field."""
    return dataclasses.replace(
        config,
        kv_heads=config.groups,
        head_size=config.head_width,
        # Of a decoder without dense layers, which has no MLP, the experts' width, as Hugging Face has one for both.
        mlp_width=config.experts.width if config.experts and not config.experts.dense_layers else config.hidden_width,
        attention_scale=config.attention_scale or config.head_width**-0.5,
        window_every=config.window_every if config.window and config.full_every is None else 1,
        full_every=config.full_every if config.window and (config.full_every or 0) <= config.layers else None,
        window_theta=_own_theta(config),
        # How experts are balanced is a choice of the training.
        experts=config.experts and dataclasses.replace(config.experts, bias_rate=0.0, balance_loss=0.0, z_loss=0.0),
    )


def _own_theta(config: DecoderConfig) -> float | None:
    """Return the base of rotary positions in layers with a window where it differs from the others'."""
    same = config.rope_scaling is None and config.window_theta == config.rope_theta
    return config.window_theta if config.window and not same else None


def _family_of(data: Mapping[str, Any], name: str) -> ModelFamily:
    found = data.get("model_type")
    if isinstance(found, str) and found in FAMILIES:
        return FAMILIES[found]
    if found is None:
        raise SkytrainError(
            f"no model_type in {name}/config.json, which names the architecture\n  add one of {', '.join(FAMILIES)}"
        )
    guess = nearest(
        str(found), FAMILIES, cutoff=0.7
    )  # a lower cutoff matches unrelated short names, such as opt and gpt2
    raise UnsupportedArchitecture(
        f"{name}: the built-in decoder has no architecture {found!r} (model_type in config.json);"
        f" it has {', '.join(FAMILIES)}" + (f"; did you mean {guess}?" if guess else "")
    )


def _export_problem(form: DecoderConfig) -> ConfigError | None:
    """Return why transformers cannot load this decoder as its family with equal results, or None if it can."""
    family = FAMILIES[form.family]
    hint = "such a model trains and generates here, but cannot be exported to Hugging Face"
    if refused := family.export_problem(form):
        key, problem = refused
        return ConfigError(key, f"{problem} {family.architecture}", hint=hint)
    try:
        again = read_hf_config(_written(form), name=form.name, pad_vocab_to=form.pad_vocab_to)
    except SkytrainError as error:  # the family has no key for a field: GPT-2 has none for the head size
        return ConfigError("model.family", f"has no form in Hugging Face's {family.architecture}: {error}", hint=hint)
    ours, theirs = (flatten(dataclasses.asdict(explicit(each))) for each in (form, again))
    # With dynamic RoPE config.json holds only the original length that is extended.
    ignored = (*NOT_IN_CONFIG, "max_length") if isinstance(form.rope_scaling, DynamicRope) else NOT_IN_CONFIG
    for field, value in ours.items():
        if field not in ignored and (field not in theirs or theirs[field] != value):
            meant = repr(theirs[field]) if field in theirs else "something else"
            problem = f"{value!r} has no form in Hugging Face's {family.architecture}, which means {meant}"
            return ConfigError(f"model.{field}", problem, hint=hint)
    return None


def _written(form: DecoderConfig) -> dict[str, Any]:
    family = FAMILIES[form.family]
    assert family.write is not None
    return {
        "architectures": [family.architecture],
        "model_type": family.name,
        **family.write(form),
        "vocab_size": form.vocab_size,
        "tie_word_embeddings": form.tied_head,
    }
