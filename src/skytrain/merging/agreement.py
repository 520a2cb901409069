"""Whether models can be merged: one tokenizer, one architecture, the same tensors, and a common ancestor."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ..config import WEIGHTS, DecoderConfig, ModelConfig, SkytrainError, build, flatten, select
from ..models import VOCABULARY, explicit
from ..runs import RunRecord, load_run
from ..storage import Store
from .inputs import MergeInput

# A label, choices of the training, and what the shapes of the tensors show.
NOT_COMPARED = ("name", "pad_vocab_to", "dropout", "weights")
# A point of a run's history. Weights of other programs have no step.
Ancestor = tuple[str, int | None]


class NotMergeable(SkytrainError):
    """The weights of the models do not mean the same."""


def check_inputs(inputs: Sequence[MergeInput]) -> None:
    """Raise NotMergeable if a model differs from the first in tokenizer, architecture or shapes."""
    first = inputs[0]
    for other in inputs[1:]:
        if other.tokenizer.hash != first.tokenizer.hash:
            raise NotMergeable(
                f"{other.label} and {first.label} have different tokenizers, {other.tokenizer.name} "
                f"({other.tokenizer.hash[:12]}) and {first.tokenizer.name} ({first.tokenizer.hash[:12]}): "
                "the same token stands for different text, so their weights cannot be merged"
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
        # The padding of a decoder's vocabulary may differ: it takes no part in a merge.
        free = 1 if name in VOCABULARY and first.model.get("family") not in ("hf", "custom") else 0
        if other.tensors[name].shape[free:] != facts.shape[free:]:
            sizes = [" x ".join(map(str, each.tensors[name].shape)) for each in (other, first)]
            raise NotMergeable(f"{name} is {sizes[0]} in {other.label} and {sizes[1]} in {first.label}")


def _differences(ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> list[tuple[str, Any, Any]]:
    """Return the settings in which two models differ, of those that decide what their weights mean."""
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


def ancestors(store: Store, source: MergeInput) -> list[Ancestor]:
    """Return the model itself, what it started from, what that started from, and so on; all parents of a merge."""
    if source.run is None:
        return [(source.label, None)]
    history: list[Ancestor] = []
    waiting = [(source.run, source.step)]
    while waiting:
        record, step = waiting.pop(0)
        if (record.name, step) in history:
            continue
        history.append((record.name, step))
        for name, parent_step in _parents(record):
            parent = _find(store, name)
            if parent is None or parent_step is None:
                history.append((name, None))
            else:
                waiting.append((parent, parent_step))
    return history


def common_ancestor(store: Store, inputs: Sequence[MergeInput]) -> str | None:
    """Return the nearest point that all models come from, as RUN@STEP or as weights, or None.

    For several checkpoints of one run, it is the earliest of them.
    """
    histories = [ancestors(store, each) for each in inputs]
    for name, _ in histories[0]:
        steps = [[step for each, step in history if each == name] for history in histories]
        if all(steps):
            known = [step for each in steps for step in each if step is not None]
            return f"{name}@{min(known)}" if known else name
    return None


def _parents(record: RunRecord) -> Iterator[Ancestor]:
    # Older records do not say the step of what they started from.
    start = record.parent or (record.started_from or "").partition(",")[0] or _start_weights(record)
    starts = record.merged_from or ([start] if start else [])
    for start in starts:
        name, _, step = start.partition("@")
        yield (name, int(step)) if step.isdecimal() else (start, None)


def _start_weights(record: RunRecord) -> str | None:
    """Return the pretrained weights that the model's settings name."""
    model = record.config.get("model", {})
    if model.get("family") == "hf":
        return str(model.get("name")) if model.get("weights") == "pretrained" else None
    weights = model.get("weights")
    return weights if isinstance(weights, str) else None


def _find(store: Store, name: str) -> RunRecord | None:
    if "/" in name or not store.exists(f"runs/{name}/run.json"):
        return None
    try:
        return load_run(store, name)
    except SkytrainError:  # a damaged record has no known ancestors
        return None
