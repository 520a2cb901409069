"""Weights under Hugging Face's names and in its layouts, and back."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ..config import DecoderConfig, SkytrainError
from .decoder import Decoder
from .families import FAMILIES
from .initialise import VOCABULARY

EXPERTS = ".mixture.experts."  # in the names of parameters that hold a matrix for each expert
# Tables in older files that are computed, not learned.
COMPUTED = re.compile(r"(\.attn\.(masked_)?bias|rotary_emb\.inv_freq|rotary\.inv_freq)$")


@dataclass(frozen=True)
class WeightPair:
    """Parameters of the decoder and the Hugging Face tensors that hold the same values.

    One of each, or qkv and three tensors, or gate and up and one tensor, or all experts and one tensor for each.
    """

    ours: tuple[str, ...]
    theirs: tuple[str, ...]


def weight_pairs(config: DecoderConfig, names: Iterable[str]) -> Iterator[WeightPair]:
    """Return the pairs that hold the parameters `names`, in their order."""
    seen: set[str] = set()
    for name in names:
        if name not in seen:
            pair = _pair_of(config, name)
            seen.update(pair.ours)
            yield pair


def to_hf(config: DecoderConfig, pair: WeightPair, values: Sequence[Tensor]) -> dict[str, Tensor]:
    """Return the Hugging Face tensors of a pair from the parameters' values."""
    parts = [
        value[: config.vocab_size] if name in VOCABULARY else value
        for name, value in zip(pair.ours, values, strict=True)
    ]
    if ".attention.qkv." in pair.ours[0]:
        parts = list(split_groups(config, parts[0]))
    if EXPERTS in pair.ours[0]:
        parts = [_packed(pair, parts)] if FAMILIES[config.family].packed_experts else list(parts[0].unbind())
    if len(parts) > len(pair.theirs):
        parts = [_joined(parts)]
    if _is_conv1d(config, pair):
        parts = [part.t() for part in parts]
    return {name: part.contiguous() for name, part in zip(pair.theirs, parts, strict=True)}


def from_hf(config: DecoderConfig, pair: WeightPair, tensors: Sequence[Tensor]) -> dict[str, Tensor]:
    """Return the decoder's parameters of a pair from the Hugging Face tensors."""
    parts = [part.t() for part in tensors] if _is_conv1d(config, pair) else list(tensors)
    if ".attention.qkv." in pair.ours[0]:
        sizes = [config.heads * config.head_width, config.groups * config.head_width, config.groups * config.head_width]
        q, k, v = parts[0].split(sizes) if len(parts) == 1 else parts
        parts = [join_groups(config, q, k, v)]
    elif EXPERTS in pair.ours[0]:
        packed = FAMILIES[config.family].packed_experts
        parts = _unpacked(pair, parts[0]) if packed else [torch.stack(parts)]
    elif len(parts) < len(pair.ours):
        parts = [part.clone() for part in parts[0].chunk(len(pair.ours))]  # each with its own storage
    return {name: _with_padding(config, name, part) for name, part in zip(pair.ours, parts, strict=True)}


def _joined(parts: Sequence[Tensor]) -> Tensor:
    """Return parts as one tensor, one after another."""
    if parts[
        0
    ].is_meta:  # torch.cat of shapes alone imports torch._dynamo, which takes longer than reading a small model
        return parts[0].new_empty(sum(map(len, parts)), *parts[0].shape[1:])
    return torch.cat(tuple(parts))


def _packed(pair: WeightPair, parts: Sequence[Tensor]) -> Tensor:
    """Return the experts of a layer as one tensor: (experts, in, out) or (experts, out), gate and up in turn."""
    joined = parts[0] if len(parts) == 1 else torch.stack(tuple(parts), dim=2).flatten(1, 2)
    return joined.mT if pair.ours[0].endswith(".weight") else joined


def _unpacked(pair: WeightPair, value: Tensor) -> list[Tensor]:
    """Return the parameters of a layer's experts from one tensor: the inverse of `_packed`."""
    joined = value.mT if pair.ours[0].endswith(".weight") else value
    if len(pair.ours) == 1:
        return [joined]
    return [part.contiguous() for part in joined.unflatten(1, (-1, len(pair.ours))).unbind(2)]


def state_to_hf(config: DecoderConfig, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return a complete state dict (or its gradients) under Hugging Face's names; a tied head is left out."""
    names = [name for name in state if not (config.tied_head and name == "head.projection.weight")]
    theirs: dict[str, Tensor] = {}
    for pair in weight_pairs(config, names):
        theirs.update(to_hf(config, pair, [state[name] for name in pair.ours]))
    return theirs


def state_from_hf(config: DecoderConfig, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the decoder's state dict from Hugging Face's, after a check that every tensor is there and fits."""
    shapes = {name: tuple(tensor.shape) for name, tensor in state.items()}
    ours: dict[str, Tensor] = {}
    for pair in match_weights(config, shapes):
        ours.update(from_hf(config, pair, [state[name] for name in pair.theirs]))
    return ours


def match_weights(config: DecoderConfig, found: Mapping[str, tuple[int, ...]]) -> list[WeightPair]:
    """Return the pairs of all parameters, under the names in `found`.

    Raises where a tensor is missing, left over or of another shape.
    """
    prefix = FAMILIES[config.family].prefix
    bare = not any(name.startswith(prefix) for name in found)
    pairs: list[WeightPair] = []
    shapes: dict[str, tuple[int, ...]] = {}
    with torch.device("meta"):
        parameters = dict(Decoder(config).named_parameters())
    for pair in weight_pairs(config, parameters):
        pieces = {
            (name.removeprefix(prefix) if bare else name): tuple(piece.shape)
            for name, piece in to_hf(config, pair, [parameters[name] for name in pair.ours]).items()
        }
        pairs.append(WeightPair(pair.ours, tuple(pieces)))
        shapes.update(pieces)
    ignored = {"lm_head.weight"} if config.tied_head else set()
    extra = f".layers.{config.layers}." if FAMILIES[config.family].extra_layer else None
    left_over = [
        name
        for name in found
        if name not in shapes
        and name not in ignored
        and not COMPUTED.search(name)
        and not (extra and extra in f".{name}")
    ]
    problems = [
        *(f"{name} is missing" for name in shapes if name not in found),
        *(f"{name} has no place in the model" for name in left_over),
        *(
            f"{name} is {found[name]}, the configuration asks for {shape}"
            for name, shape in shapes.items()
            if found.get(name, shape) != shape
        ),
    ]
    if problems:
        raise SkytrainError(f"the weights do not fit the configuration of {config.name}: {_first(problems)}")
    return pairs


def _pair_of(config: DecoderConfig, name: str) -> WeightPair:
    module, _, leaf = name.rpartition(".")
    layer = re.match(r"blocks\.(\d+)\.", module)
    ours, theirs = _module_pairs(config.family)[re.sub(r"^blocks\.\d+\.", "blocks.{}.", module)]
    number = layer[1] if layer else ""
    if EXPERTS in module and config.experts is not None:
        each_alone = not FAMILIES[config.family].packed_experts
        count = config.experts.count if each_alone else 1
        theirs = tuple(theirs[0].replace("{expert}", str(expert)) for expert in range(count))
    spell = FAMILIES[config.family].spell
    return WeightPair(
        tuple(f"{each.format(number)}.{leaf}" for each in ours),
        tuple(spell(f"{each.format(number)}.{leaf}", config) for each in theirs),
    )


@functools.cache
def _module_pairs(family: str) -> dict[str, tuple[tuple[str, ...], tuple[str, ...]]]:
    """Return the family's module names, by each module of the decoder."""
    found: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {}
    for ours, theirs in FAMILIES[family].modules.items():
        modules = (ours,) if isinstance(ours, str) else ours
        names = (theirs,) if isinstance(theirs, str) else theirs
        found.update(dict.fromkeys(modules, (modules, names)))
    return found


def _with_padding(config: DecoderConfig, name: str, value: Tensor) -> Tensor:
    if name in VOCABULARY and config.padded_vocab > config.vocab_size:
        padding = value.new_zeros(config.padded_vocab - config.vocab_size, value.size(1))
        return torch.cat((value, padding))
    return value.contiguous()


def _first(problems: Sequence[str]) -> str:
    more = f"; and {len(problems) - 4} more" if len(problems) > 4 else ""
    return "; ".join(problems[:4]) + more


def _is_conv1d(config: DecoderConfig, pair: WeightPair) -> bool:
    matrix = pair.ours[0].startswith("blocks.") and pair.ours[0].endswith(
        (".qkv.weight", ".out.weight", ".up.weight", ".down.weight")
    )
    return FAMILIES[config.family].conv1d and matrix


def split_groups(config: DecoderConfig, value: Tensor) -> Iterable[Tensor]:
    """Return all queries, all keys and all values from rows that are ordered by group (its queries, key, value)."""
    each = config.heads // config.groups
    grouped = value.view(config.groups, each + 2, config.head_width, *value.shape[1:])
    return (part.reshape(-1, *value.shape[1:]) for part in (grouped[:, :each], grouped[:, each], grouped[:, each + 1]))


def join_groups(config: DecoderConfig, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Return rows ordered by group from queries, keys and values: the inverse of `split_groups`."""
    rest = q.shape[1:]
    parts = (part.reshape(config.groups, -1, config.head_width, *rest) for part in (q, k, v))
    return torch.cat(tuple(parts), dim=1).reshape(-1, *rest)
