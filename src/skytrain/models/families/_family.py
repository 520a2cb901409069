"""What a model family consists of, and checks that readers of config.json share. No torch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from ...config import DecoderConfig, SkytrainError

SILU = ("silu", "swish")  # two names of one function
RUNS_ANYWAY = "  model=hf model.name=FOLDER runs any causal language model that transformers has"


class UnsupportedArchitecture(SkytrainError):
    """A model of Hugging Face that the built-in decoder does not compute; transformers may."""

    def __init__(self, problem: str) -> None:
        self.problem = problem
        super().__init__(f"{problem}\n{RUNS_ANYWAY}")


# Modules of the decoder -> modules of the Hugging Face model; `{}` stands for the layer.
# One name to three: Hugging Face stores q, k and v separately. Two names to one: it stores gate and up as one matrix.
ModuleNames = Mapping[str | tuple[str, ...], str | tuple[str, ...]]


def same(name: str, config: DecoderConfig) -> str:
    """Return a tensor's name unchanged: the `spell` of families that call a module's parameters `weight` and `bias`."""
    return name


def never(config: DecoderConfig) -> None:
    """Return no problem: the `export_problem` of families that transformers loads in every size."""


@dataclass(frozen=True)
class ModelFamily:
    """One Hugging Face architecture: how its config.json is read and written, and what its weights are called.

    Settings that all sizes of the family share are in `config/groups/model/_NAME.yaml`.
    """

    name: str  # `model_type` in config.json
    architecture: str
    # What a key that is missing from config.json means: the values of the architecture's configuration class.
    defaults: Mapping[str, Any]
    # config.json with defaults -> settings of the decoder; raises for what the decoder does not compute.
    read: Callable[[Mapping[str, Any]], dict[str, Any]]
    # The decoder -> keys of config.json; None: transformers cannot load this architecture, so nothing is exported to it.
    write: Callable[[DecoderConfig], dict[str, Any]] | None
    modules: ModuleNames
    prefix: str = "model."  # of tensor names; some published files leave it out
    aliases: Mapping[str, str] = field(default_factory=dict)  # other spellings of keys in config.json
    conv1d: bool = False  # matrices of the blocks are stored as (in, out)
    # All experts of a layer are one tensor, with matrices stored as (in, out), and columns of gate and up in turn.
    packed_experts: bool = False
    spell: Callable[[str, DecoderConfig], str] = (
        same  # MODULE.weight, MODULE.bias and so on -> the tensor's name in files
    )
    scales_experts: bool = (
        False  # config.json has the factor of the experts' outputs; else exports fold it into weights
    )
    extra_layer: bool = False  # files may have one after the last, for multi-token prediction; it is not read
    # The setting and the reason for which transformers would refuse the exported model.
    export_problem: Callable[[DecoderConfig], tuple[str, str] | None] = never
    export_as: str | None = None  # the family that is tried first for exports; None: this one

    def with_defaults(self, data: Mapping[str, Any]) -> dict[str, Any]:
        """Return config.json under the family's own keys, completed with the defaults."""
        return {**self.defaults, **{self.aliases.get(key, key): value for key, value in data.items()}}


def need(data: Mapping[str, Any], name: str) -> Any:
    """Return a value that config.json must have."""
    if data.get(name) is None:
        raise SkytrainError(f"config.json has no {name!r}")
    return data[name]


def refuse(data: Mapping[str, Any], **supported: Any) -> None:
    """Raise for a setting that the decoder does not have; a tuple lists values that mean the same to it."""
    for name, values in supported.items():
        choices = values if isinstance(values, tuple) else (values,)
        if name in data and data[name] not in choices:
            raise UnsupportedArchitecture(
                f"config.json: {name}={data[name]!r} is not supported by the built-in decoder (only {choices[0]!r})"
            )
