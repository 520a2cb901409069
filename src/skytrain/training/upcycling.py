"""A mixture of experts from the checkpoint of a dense model: each expert starts as a copy of the MLP (arXiv 2212.05055).

Routers are new. Where a token's weights add up to one, the mixture computes at first what the dense model computed: the
experts' last matrices are divided by the factor of their outputs, `model.experts.scale`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from ..checkpoints import SavedTensors
from ..config import ConfigError, DecoderConfig, ModelConfig, build, has_layers, upgrade
from ..models import as_typed, build_model, explicit, written

MIXTURE = ".mixture.experts."


def dense_model_of(saved: Mapping[str, Any], model: ModelConfig) -> DecoderConfig | None:
    """Return the dense decoder of a checkpoint that a mixture starts from; None if this is not such a start."""
    if not has_layers(model) or model.experts is None:
        return None
    dense: ModelConfig = build(ModelConfig, upgrade(ModelConfig, saved), "model")
    return dense if has_layers(dense) and dense.experts is None else None


def check_upcycling(dense: DecoderConfig, model: DecoderConfig, label: str) -> None:
    """Raise ConfigError where the mixture differs from the dense model by more than its experts."""
    experts = model.experts
    assert experts is not None
    if experts.width != dense.hidden_width:
        raise ConfigError(
            "model.experts.width",
            f"{experts.width}: each expert starts as a copy of the MLP of {label}, which is {dense.hidden_width} wide",
            hint=f"try model.experts.width={dense.hidden_width}",
        )
    if experts.shared_width is not None:
        raise ConfigError(
            "model.experts.shared_width",
            f"{experts.shared_width}: a mixture that starts from a dense model ({label}) has no shared expert",
            hint="try model.experts.shared_width=null",
        )
    theirs, ours = _comparable(dense), _comparable(model)
    for field in dataclasses.fields(DecoderConfig):
        key = f"model.{field.name}"
        there, here = getattr(theirs, field.name), getattr(ours, field.name)
        if there != here:
            raise ConfigError(
                key,
                f"{written(here)} here, {written(there)} in {label}: only the MLPs of a dense model become experts",
                hint=f"set {as_typed(key, there)}",
            )
    if experts.dense_layers and model.hidden_width != dense.hidden_width:
        raise ConfigError(
            "model.mlp_width",
            f"{model.hidden_width}: the first {experts.dense_layers} layers keep the MLP of {label}",
            hint=f"set model.mlp_width={dense.hidden_width}",
        )


def _comparable(model: DecoderConfig) -> DecoderConfig:
    """Fill in derived values, and even out what may differ: labels, choices of the training, and the MLPs."""
    return dataclasses.replace(
        explicit(model),
        name="",
        family="llama",
        weights=None,
        dropout=0.0,
        max_length=model.max_length if model.positions == "learned" else 1,
        mlp_width=None,
        experts=None,
    )


def upcycling_note(model: DecoderConfig, label: str) -> str:
    """Return a line on what the mixture starts as."""
    experts = model.experts
    assert experts is not None
    computes = (
        "computes what it computed"
        if experts.normalize
        else "does not compute what it computed, as weights do not add up to one"
    )
    return f"each of {experts.count} experts starts as a copy of the MLP of {label}; the mixture {computes}"


@torch.no_grad()
def build_upcycled(model: DecoderConfig, seed: int, saved: SavedTensors) -> nn.Module:
    """Build the mixture with new routers, and all other weights from the checkpoint of the dense model."""
    assert model.experts is not None
    mixture = build_model(model, seed=seed)
    seen: set[int] = set()
    same: list[tuple[str, Tensor]] = []
    for name, tensor in mixture.state_dict(keep_vars=True).items():
        if id(tensor) in seen or ".mixture.router." in name:
            continue
        seen.add(id(tensor))
        if MIXTURE in name:
            once = torch.empty(tensor.shape[1:], dtype=tensor.dtype)
            saved.read_into([(name.replace(MIXTURE, ".mlp."), once)])
            scale = model.experts.scale if ".down." in name else 1.0
            tensor.copy_((once / scale).expand_as(tensor))
        else:
            same.append((name, tensor))
    saved.read_into(same)
    return mixture
