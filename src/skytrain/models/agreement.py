"""Check that a model configuration matches the weights it is loaded with. Does not import torch.

The same tensors with a different RoPE base or soft cap are a different model, so every field of the decoder
configuration is compared except those in `NOT_COMPARED`.
"""

from __future__ import annotations

import dataclasses
import functools
import shlex
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

from ..config import (
    COMBINATION_RULES,
    MODEL_SIZE_RULES,
    AdoptedSettings,
    Config,
    ConfigError,
    DecoderConfig,
    HFModelConfig,
    HFShape,
    ModelConfig,
    Setup,
    SkytrainError,
    assumed_mesh,
    check_job,
    check_setup,
    has_layers,
)
from ..storage import damaged, read_file_object
from ..tokens import has_tokenizer_files
from .families import UnsupportedArchitecture
from .hf_form import explicit, read_hf_config
from .safetensors_header import has_weights, read_headers
from .sources import CONFIG, find_description, is_pretrained

UNLIMITED_LENGTH = 1 << 20  # where config.json names no longest sequence (state-space models)

# transformers' words for how a layer is divided, and ours (parallel/tensor.py).
TENSOR_STYLES = {
    "colwise": "columns",
    "rowwise": "rows whole",
    "colwise_gather_output": "columns whole",
    "embedding_rowwise": "vocabulary",
    "replicated_with_grad_allreduce": "heads",  # norms of queries and keys
}

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


P = ParamSpec("P")
R = TypeVar("R")


def _of_a_description(read: Callable[P, R]) -> Callable[P, R]:
    """Report what a config.json says of another type as damage: whoever made the folder decides it."""

    @functools.wraps(read)
    def checked(*args: P.args, **more: P.kwargs) -> R:
        try:
            return read(*args, **more)
        except SkytrainError:
            raise
        except (TypeError, ValueError, KeyError, IndexError, AttributeError, ArithmeticError) as error:
            where = getattr(args[0], "name", None) or args[0]
            raise damaged(f"{where}: {CONFIG}", error, "download it again, or correct it") from None

    return checked


@_of_a_description
def read_hf_decoder(source: str | Path, *, pad_vocab_to: int = 128, max_length: int | None = None) -> DecoderConfig:
    """Return the decoder configuration that the config.json of a folder, or of a repository of the hub, describes.

    Raises `UnsupportedArchitecture` where the built-in decoder does not compute what it asks for.
    """
    data, name = _read_config(source)
    return read_hf_config(data, name=name, pad_vocab_to=pad_vocab_to, max_length=max_length)


def adopt_model(source: str | None, tell: Callable[[str], None] = lambda line: None) -> AdoptedSettings | None:
    """Return the settings that pretrained weights bring. None if `source` is an llm.c file, or nothing.

    Training choices (`NOT_ADOPTED`) are left out. An architecture that the built-in decoder lacks becomes `model=hf`,
    which `tell` is given a line about.
    """
    if source is None or Path(source).is_file():
        return None
    file = f"{source}/{CONFIG}"
    # Its vocabulary and id are read from its files, as with tokenizer=hf.
    tokenizer = {"kind": "hf", "name": source, "text_may_be_special": False, "vocab_size": "???", "id": "???"}
    try:
        values = dataclasses.asdict(read_hf_decoder(source))
        model = {name: value for name, value in values.items() if name not in NOT_ADOPTED}
    except UnsupportedArchitecture as error:
        tell(f"{error.problem}: transformers runs it (model=hf)")
        model = transformers_settings(source)
    folder = Path(source).expanduser()
    return AdoptedSettings(
        file, model, tokenizer, has_tokenizer_files=not folder.is_dir() or has_tokenizer_files(folder)
    )


@_of_a_description
def transformers_settings(source: str) -> dict[str, Any]:
    """Return the settings of `model=hf` with the weights of `source`."""
    whole, _ = _read_config(source)
    data = {**whole, **whole.get("text_config", {})}
    local = Path(source).expanduser()
    is_place = local.is_dir() or "://" in source
    name, _, revision = (str(local) if local.is_dir() else source, "", "") if is_place else source.partition("@")
    length = next((data[key] for key in ("max_position_embeddings", "n_positions", "n_ctx") if data.get(key)), None)
    if not isinstance(data.get("vocab_size"), int):
        raise SkytrainError(f"{source}: {CONFIG} has no vocab_size, so it does not describe a language model")
    _check_known(source, whole)
    return {
        "name": name,
        "family": "hf",
        "weights": "pretrained",
        "revision": revision or None,
        "trust_remote_code": False,
        "vocab_size": data["vocab_size"],
        "max_length": length or UNLIMITED_LENGTH,
    }


def _check_known(source: str, data: Mapping[str, Any]) -> None:
    """Raise where transformers, if it is installed, has no such architecture and the weights bring no code for it."""
    try:
        from transformers.models.auto.configuration_auto import CONFIG_MAPPING_NAMES
    except ImportError:
        return
    if data["model_type"] not in CONFIG_MAPPING_NAMES and not data.get("auto_map"):
        raise SkytrainError(
            f"{source}: neither the built-in decoder nor transformers has the architecture {data['model_type']!r}"
            f" (model_type in {CONFIG})\n  correct it, or install a version of transformers that has it"
        )


def _read_config(source: str | Path) -> tuple[dict[str, Any], str]:
    """Return the config.json of a folder or a repository, and a name for the model."""
    folder = find_description(str(source))
    try:
        data = read_file_object(folder / CONFIG, remedy=f"{source} is not a Hugging Face model")
    except OSError as error:
        raise SkytrainError(f"{source} is not a Hugging Face model: {CONFIG} cannot be read ({error})") from None
    local = Path(source).expanduser()
    name = local.resolve().name if local.is_dir() else str(source).rpartition("/")[2]
    return data, name.partition("@")[0] or name


def check_model(config: ModelConfig, start: str | None = None, *, shape_suffices: bool = False) -> str | None:
    """Raise ConfigError if a decoder configuration does not match the weights it starts from.

    The weights are `start` if that is a folder or a repository, otherwise `config.weights`. Files that are here are
    checked too, so that a missing or truncated one ends the command before any work; of model=hf, only these. Where the
    shape suffices, a folder may lack all of them; it is returned.
    """
    source = start if start and is_pretrained(start) else getattr(config, "weights", None)
    if has_layers(config) and source is not None and not Path(source).is_file():
        check_agreement(config, read_hf_decoder(source), source)
    elif isinstance(config, HFModelConfig) and config.weights == "pretrained":
        source = config.name
    else:
        return None
    folder = Path(source).expanduser()
    if folder.is_dir():
        if shape_suffices and not has_weights(folder):
            return source
        read_headers(folder)
    return None


def check_mesh(config: Config, processes: int | None = None, nodes: int = 1) -> None:
    """Raise ConfigError if so many processes cannot form the mesh, or if no number of them can.

    Of a model of transformers that tensor parallelism divides, config.json is read, here and nowhere before: a name of
    the hub costs a request.
    """
    hf = None
    assumed = assumed_mesh(config.parallel)
    if isinstance(config.model, HFModelConfig) and assumed.tensor > 1:
        hf = read_hf_shape(config.model)
    if processes is not None:
        check_job(config, processes, nodes, hf)
    elif hf is not None:
        rules = COMBINATION_RULES if config.parallel.tensor == -1 else (*COMBINATION_RULES, *MODEL_SIZE_RULES)
        check_setup(Setup(config, assumed, hf=hf), rules)


@_of_a_description
def read_hf_shape(model: HFModelConfig) -> HFShape:
    """Return what meshes depend on in a model of transformers."""
    whole, _ = _read_config(model.name)
    settings = {**whole, **whole.get("text_config", {})}
    return HFShape(model.name, hf_sizes(settings), _has_tensor_plan(settings))


def hf_sizes(settings: Mapping[str, Any]) -> dict[str, int]:
    """Return what tensor-parallel ranks divide, by the names of messages, as far as a configuration has it."""
    heads = settings.get("num_attention_heads")
    counts = {
        "attention heads": heads,
        "key-value heads": settings.get("num_key_value_heads") or heads,
        "columns of the MLP": settings.get("intermediate_size"),
    }
    return {what: count for what, count in counts.items() if isinstance(count, int)}


def _has_tensor_plan(settings: Mapping[str, Any]) -> bool | None:
    """Return whether transformers says how the layers are divided, in words that we have; None if it is not installed.

    Code that comes with the weights may say so too, and is not run here.
    """
    try:
        from transformers.models.auto.configuration_auto import CONFIG_MAPPING
    except ImportError:
        return None
    kind = str(settings.get("model_type"))
    if settings.get("auto_map") or kind not in CONFIG_MAPPING:
        return None
    plan = CONFIG_MAPPING[kind].base_model_tp_plan or {}
    return bool(plan) and set(plan.values()) <= set(TENSOR_STYLES)


def check_agreement(config: DecoderConfig, found: DecoderConfig, source: str) -> None:
    """Raise ConfigError, with one line per field, if the configuration does not match that of the weights."""
    wanted = explicit(config)
    there = explicit(found)
    # With rotary positions max_length only limits the sequence length; no weight depends on it.
    free = {*NOT_COMPARED, *(() if found.positions == "learned" else ("max_length",))}
    lines = [
        f"  model.{field.name}: configured {written(getattr(wanted, field.name))}, the weights have"
        f" {written(getattr(there, field.name))}; set {as_typed(f'model.{field.name}', getattr(there, field.name))}"
        for field in dataclasses.fields(DecoderConfig)
        if field.name not in free and getattr(wanted, field.name) != getattr(there, field.name)
    ]
    if lines:
        problem = f"the configuration of model {config.name} is not that of the weights in {source}\n" + "\n".join(
            lines
        )
        hint = "or leave out model=NAME and these settings: they are then taken from the folder's config.json"
        raise ConfigError("model.weights", problem, hint=hint if Path(source).is_dir() else None)


def written(value: Any) -> str:
    """Format a value as it is typed on the command line."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        value = dataclasses.asdict(value)
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{key}: {written(each)}" for key, each in value.items()) + "}"
    if isinstance(value, bool) or value is None:
        return {True: "true", False: "false", None: "null"}[value]
    return str(value)


def as_typed(key: str, value: Any) -> str:
    """Return the word of a command that gives a setting this value, as a shell takes it."""
    return shlex.quote(f"{key}={written(value)}")
