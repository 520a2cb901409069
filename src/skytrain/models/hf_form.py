"""config.json of Hugging Face: the decoder that it describes, and the architecture that a decoder is exported as. No torch."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from ..config import ConfigError, DecoderConfig, DynamicRope, SkytrainError, build, check_decoder, nearest
from .families import FAMILIES, ModelFamily
from .families._family import need
from .sizes import model_file

# Fields that config.json does not have (name, padding), has in another form (dropout), or that only matter in training.
NOT_IN_CONFIG = ("name", "family", "pad_vocab_to", "dropout", "weights", "base_width", "base_layers")


def read_hf_config(
    data: Mapping[str, Any], *, name: str, pad_vocab_to: int, max_length: int | None = None
) -> DecoderConfig:
    """The decoder that a config.json describes. `max_length` changes its longest sequence (rotary positions only)."""
    family = _family_of(data, name)
    data = family.with_defaults(data)
    values = {
        **model_file(f"_{family.name}"),
        **family.read(data),
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


def hf_config(config: DecoderConfig, *, eot: int | None = None, dtype: str = "float32") -> dict[str, Any]:
    """config.json of this decoder; raises ConfigError where no Hugging Face architecture computes the same."""
    return {
        **_written(hf_form(config)),
        "bos_token_id": eot,
        "eos_token_id": eot,
        # The default of some architectures lies outside a small vocabulary, and no token of ours is padding.
        "pad_token_id": None,
        "initializer_range": 0.02,
        "dtype": dtype,
        "torch_dtype": dtype,  # the key that transformers read before version 5
        "use_cache": True,
    }


def hf_form(config: DecoderConfig) -> DecoderConfig:
    """The decoder under a family whose Hugging Face architecture computes the same: its own, else the first that does.

    So EXAONE becomes Llama, and Llama with an uneven width Mistral without a window. Raises where there is none.
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
    """The same decoder with derived values filled in, so that two of them can be compared."""
    return dataclasses.replace(
        config,
        kv_heads=config.groups,
        head_size=config.head_width,
        mlp_width=config.hidden_width,
        attention_scale=config.attention_scale or config.head_width**-0.5,
        window_every=config.window_every if config.window else 1,
    )


def _family_of(data: Mapping[str, Any], name: str) -> ModelFamily:
    found = data.get("model_type")
    if isinstance(found, str) and found in FAMILIES:
        return FAMILIES[found]
    if found is None:
        raise SkytrainError(
            f"no model_type in {name}/config.json, which names the architecture\n  add one of {', '.join(FAMILIES)}"
        )
    guess = nearest(str(found), FAMILIES, cutoff=0.7)  # below it short names resemble each other: opt and gpt2
    raise SkytrainError(
        f"{name}: the built-in decoder has no architecture {found!r} (model_type in config.json);"
        f" it has {', '.join(FAMILIES)}"
        + (f"\n  did you mean {guess}?" if guess else "")
        + "\n  model=hf model.name=FOLDER trains any causal language model that transformers has"
    )


def _export_problem(form: DecoderConfig) -> ConfigError | None:
    """Why transformers would not load this decoder as its family, or would compute something else."""
    family = FAMILIES[form.family]
    hint = "such a model trains and generates here, but cannot be exported to Hugging Face"
    if refused := family.export_problem(form):
        key, problem = refused
        return ConfigError(key, f"{problem} {family.architecture}", hint=hint)
    try:
        again = read_hf_config(_written(form), name=form.name, pad_vocab_to=form.pad_vocab_to)
    except SkytrainError as error:  # the family has no key for it: GPT-2 has none for the size of a head
        return ConfigError("model.family", f"has no form in Hugging Face's {family.architecture}: {error}", hint=hint)
    ours, theirs = (dataclasses.asdict(explicit(each)) for each in (form, again))
    # With dynamic positions config.json has only the length that they extend from.
    ignored = (*NOT_IN_CONFIG, "max_length") if isinstance(form.rope_scaling, DynamicRope) else NOT_IN_CONFIG
    for field, value in ours.items():
        if field not in ignored and theirs[field] != value:
            problem = f"{value!r} has no form in Hugging Face's {family.architecture}, which means {theirs[field]!r}"
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
