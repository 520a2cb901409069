"""Whether models can be merged: one tokenizer, one architecture, the same tensors, and a common ancestor."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from ..config import WEIGHTS, DecoderConfig, ModelConfig, SkytrainError, build, flatten, select
from ..models import VOCABULARY, explicit
from .inputs import MergeInput

# Labels, choices of the training, and what the tensors' shapes say.
NOT_COMPARED = ("name", "pad_vocab_to", "dropout", "weights")


class NotMergeable(SkytrainError):
    """Models whose weights do not mean the same."""


def check_inputs(inputs: Sequence[MergeInput]) -> None:
    """Raises NotMergeable where a model differs from the first in tokenizer, architecture or shapes."""
    first = inputs[0]
    for other in inputs[1:]:
        if other.tokenizer.hash != first.tokenizer.hash:
            raise NotMergeable(
                f"{other.label} and {first.label} have different tokenizers, {other.tokenizer.name} "
                f"({other.tokenizer.hash[:12]}) and {first.tokenizer.name} ({first.tokenizer.hash[:12]}): "
                "the same token means another text, so their weights cannot be merged"
            )
        if differing := _differences(first.model, other.model):
            lines = "".join(
                f"\n  {name}: {theirs} in {other.label}, {ours} in {first.label}"
                for name, ours, theirs in differing[:8]
            )
            what = "families" if any(name == "model.family" for name, _, _ in differing) else "shapes"
            raise NotMergeable(f"models of different {what} cannot be merged:{lines}")
        _check_tensors(first, other)


def _check_tensors(first: MergeInput, other: MergeInput) -> None:
    missing = [name for name in first.tensors if name not in other.tensors]
    extra = [name for name in other.tensors if name not in first.tensors]
    for names, holder, lacking in ((missing, first, other), (extra, other, first)):
        if names:
            raise NotMergeable(
                f"{lacking.label} has no {names[0]}, which {holder.label} has: they are different models"
            )
    for name, facts in first.tensors.items():
        # How far a decoder's vocabulary is padded does not matter: the padding takes no part in a merge.
        free = 1 if name in VOCABULARY and first.model.get("family") not in ("hf", "custom") else 0
        if other.tensors[name].shape[free:] != facts.shape[free:]:
            sizes = [" x ".join(map(str, each.tensors[name].shape)) for each in (other, first)]
            raise NotMergeable(f"{name} is {sizes[0]} in {other.label} and {sizes[1]} in {first.label}")


def _differences(ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> list[tuple[str, Any, Any]]:
    """The settings of two models that decide what their weights mean, where they differ."""
    one = _decisive(ours)
    two = _decisive(theirs)
    if one.get("family") != two.get("family"):
        return [("model.family", one.get("family"), two.get("family"))]
    return [
        (f"model.{key}", one.get(key), two.get(key)) for key in sorted({*one, *two}) if one.get(key) != two.get(key)
    ]


def _decisive(model: Mapping[str, Any]) -> dict[str, Any]:
    if model["family"] in ("hf", "custom"):
        return flatten(select(ModelConfig, model, {WEIGHTS}))
    decoder: DecoderConfig = explicit(build(DecoderConfig, model, "model"))
    # With rotary positions max_length only limits the sequence; no weight depends on it.
    free = {*NOT_COMPARED, *(() if decoder.positions == "learned" else ("max_length",))}
    return flatten({name: value for name, value in dataclasses.asdict(decoder).items() if name not in free})
