"""Merges tensor by tensor: at any time, one tensor of each model is in memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from ..config import DecoderConfig, build
from ..models import WeightPair, from_hf, to_hf, weight_pairs
from .inputs import MergeInput
from .methods import MergeMethod, combine

Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class MergePlan:
    """The inputs and the method of a merge. `base` is the model from which differences are taken."""

    inputs: Sequence[MergeInput]
    method: MergeMethod
    base: MergeInput | None = None

    def units(self) -> Iterator[WeightPair]:
        """Yield the units of a merge: a decoder's parameters, cut as Hugging Face's tensors are.

        So no method sees fused projections or the padding of the vocabulary, and merges of runs, of their exports and
        of other tools agree.
        """
        names = list(self.inputs[0].tensors)
        decoder = self.decoder()
        try:
            yield from list(weight_pairs(decoder, names)) if decoder else []
        except KeyError:  # a decoder with parts that its family does not have
            decoder = None
        if decoder is None:
            yield from (WeightPair((name,), (name,)) for name in names)

    def decoder(self) -> DecoderConfig | None:
        model = self.inputs[0].model
        return None if model.get("family", "custom") in ("hf", "custom") else build(DecoderConfig, model, "model")

    def merge_unit(self, unit: WeightPair) -> dict[str, Tensor]:
        """Return the merged tensors of a unit by name. A model with weight 0 is not read."""
        method = self.method
        decoder = self.decoder()
        kept = [number for number, weight in enumerate(method.weights) if weight or method.name == "slerp"]
        models = [self.inputs[number] for number in kept]
        bases = [self.base] if self.base is not None and method.needs_base else []
        parts = [_parts(each, unit, decoder) for each in (*models, *bases)]
        names = list(parts[0])
        chosen = method.choose(kept)
        merged = {}
        for name in names:
            values = [each.pop(name) for each in parts]
            base = values[len(models)] if bases else None
            merged[name] = combine(chosen, name, values[: len(models)], base, [each.label for each in models])
        if unit.ours == unit.theirs or decoder is None:
            return merged
        return from_hf(decoder, unit, [merged[name] for name in unit.theirs])


def _parts(model: MergeInput, unit: WeightPair, decoder: DecoderConfig | None) -> dict[str, Tensor]:
    values = [model.read(name) for name in unit.ours]
    if unit.ours == unit.theirs or decoder is None:
        return dict(zip(unit.ours, values, strict=True))
    return to_hf(decoder, unit, values)


def merged_tensors(plan: MergePlan, progress: Progress = lambda done, total: None) -> Iterator[tuple[str, Tensor]]:
    """Yield the merged tensors by name, each computed when it is asked for."""
    units = list(plan.units())
    for number, unit in enumerate(units):
        merged = plan.merge_unit(unit)
        for name in list(merged):
            yield name, merged.pop(name)
        progress(number + 1, len(units))


@torch.no_grad()
def load_merged(model: nn.Module, plan: MergePlan) -> None:
    """Fill a model with the merged weights."""
    places = model.state_dict(keep_vars=True)
    for name, tensor in merged_tensors(plan):
        places[name].copy_(tensor)
