"""The same weights under Hugging Face's names and shapes: a name map for each family and the few layouts that differ."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ..config import DecoderConfig, SkytrainError
from .decoder import Decoder
from .initialise import VOCABULARY


@dataclass(frozen=True)
class Names:
    """Our modules and Hugging Face's, `{}` standing for the layer; three names where theirs has q, k and v apart."""

    modules: Mapping[str, str | tuple[str, str, str]]
    prefix: str  # some published files leave it out
    conv1d: bool = False  # matrices of the blocks are stored (in, out)


LLAMA: Mapping[str, str | tuple[str, str, str]] = {
    "embedding.tokens": "model.embed_tokens",
    "blocks.{}.attention_norm": "model.layers.{}.input_layernorm",
    "blocks.{}.attention.qkv": (
        "model.layers.{}.self_attn.q_proj",
        "model.layers.{}.self_attn.k_proj",
        "model.layers.{}.self_attn.v_proj",
    ),
    "blocks.{}.attention.out": "model.layers.{}.self_attn.o_proj",
    "blocks.{}.mlp_norm": "model.layers.{}.post_attention_layernorm",
    "blocks.{}.mlp.gate": "model.layers.{}.mlp.gate_proj",
    "blocks.{}.mlp.up": "model.layers.{}.mlp.up_proj",
    "blocks.{}.mlp.down": "model.layers.{}.mlp.down_proj",
    "head.norm": "model.norm",
    "head.projection": "lm_head",
}
NAMES = {
    "gpt2": Names(
        prefix="transformer.",
        conv1d=True,
        modules={
            "embedding.tokens": "transformer.wte",
            "embedding.positions": "transformer.wpe",
            "blocks.{}.attention_norm": "transformer.h.{}.ln_1",
            "blocks.{}.attention.qkv": "transformer.h.{}.attn.c_attn",
            "blocks.{}.attention.out": "transformer.h.{}.attn.c_proj",
            "blocks.{}.mlp_norm": "transformer.h.{}.ln_2",
            "blocks.{}.mlp.up": "transformer.h.{}.mlp.c_fc",
            "blocks.{}.mlp.down": "transformer.h.{}.mlp.c_proj",
            "head.norm": "transformer.ln_f",
            "head.projection": "lm_head",
        },
    ),
    "exaone": Names(
        prefix="transformer.",
        modules={
            "embedding.tokens": "transformer.wte",
            "blocks.{}.attention_norm": "transformer.h.{}.ln_1",
            "blocks.{}.attention.qkv": (
                "transformer.h.{}.attn.attention.q_proj",
                "transformer.h.{}.attn.attention.k_proj",
                "transformer.h.{}.attn.attention.v_proj",
            ),
            "blocks.{}.attention.out": "transformer.h.{}.attn.attention.out_proj",
            "blocks.{}.mlp_norm": "transformer.h.{}.ln_2",
            "blocks.{}.mlp.gate": "transformer.h.{}.mlp.c_fc_0",
            "blocks.{}.mlp.up": "transformer.h.{}.mlp.c_fc_1",
            "blocks.{}.mlp.down": "transformer.h.{}.mlp.c_proj",
            "head.norm": "transformer.ln_f",
            "head.projection": "lm_head",
        },
    ),
    "llama": Names(prefix="model.", modules=LLAMA),
    "mistral": Names(prefix="model.", modules=LLAMA),
    "qwen2": Names(prefix="model.", modules=LLAMA),
    "qwen3": Names(
        prefix="model.",
        modules={
            **LLAMA,
            "blocks.{}.attention.q_norm": "model.layers.{}.self_attn.q_norm",
            "blocks.{}.attention.k_norm": "model.layers.{}.self_attn.k_norm",
        },
    ),
    "gemma2": Names(
        prefix="model.",
        modules={
            **LLAMA,
            "blocks.{}.attention_post_norm": "model.layers.{}.post_attention_layernorm",
            "blocks.{}.mlp_norm": "model.layers.{}.pre_feedforward_layernorm",
            "blocks.{}.mlp_post_norm": "model.layers.{}.post_feedforward_layernorm",
        },
    ),
}
# Tables that older files carry beside the parameters; they are computed, not learned.
COMPUTED = re.compile(r"(\.attn\.(masked_)?bias|rotary_emb\.inv_freq|rotary\.inv_freq)$")


def hf_names(family: str, ours: str) -> tuple[str, ...]:
    """Hugging Face's tensors that hold our parameter `ours`."""
    module, _, leaf = ours.rpartition(".")
    layer = re.match(r"blocks\.(\d+)\.", module)
    pattern = re.sub(r"^blocks\.\d+\.", "blocks.{}.", module)
    theirs = NAMES[family].modules[pattern]
    return tuple(
        f"{name.format(layer[1] if layer else '')}.{leaf}" for name in ([theirs] if isinstance(theirs, str) else theirs)
    )


def to_hf(config: DecoderConfig, ours: str, value: Tensor) -> dict[str, Tensor]:
    """One of our parameters as the tensors that Hugging Face keeps."""
    names = hf_names(config.family, ours)
    if ours in VOCABULARY:
        value = value[: config.vocab_size]
    parts: Sequence[Tensor] = [value]
    if ".attention.qkv." in ours:
        q, k, v = split_groups(config, value)
        parts = [torch.cat((q, k, v))] if len(names) == 1 else [q, k, v]
    if _is_conv1d(config, ours):
        parts = [part.t() for part in parts]
    return {name: part.contiguous() for name, part in zip(names, parts, strict=True)}


def from_hf(config: DecoderConfig, ours: str, theirs: Sequence[Tensor]) -> Tensor:
    """One of our parameters from the tensors that `hf_names` lists."""
    parts = [part.t() for part in theirs] if _is_conv1d(config, ours) else list(theirs)
    if ".attention.qkv." in ours:
        sizes = [config.heads * config.head_width, config.groups * config.head_width, config.groups * config.head_width]
        q, k, v = parts[0].split(sizes) if len(parts) == 1 else parts
        return join_groups(config, q, k, v)
    (value,) = parts
    if ours in VOCABULARY and config.padded_vocab > config.vocab_size:
        padding = value.new_zeros(config.padded_vocab - config.vocab_size, value.size(1))
        return torch.cat((value, padding))
    return value.contiguous()


def state_to_hf(config: DecoderConfig, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """A whole state dict (or its gradients) under Hugging Face's names; a tied head is left out."""
    theirs: dict[str, Tensor] = {}
    for name, value in state.items():
        if not (config.tied_head and name == "head.projection.weight"):
            theirs.update(to_hf(config, name, value))
    return theirs


def state_from_hf(config: DecoderConfig, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Our state dict from Hugging Face's, after a check that every tensor is there and fits."""
    names = {name: tuple(tensor.shape) for name, tensor in state.items()}
    return {
        ours: from_hf(config, ours, [state[name] for name in theirs]) for ours, theirs in match_names(config, names)
    }


def match_names(config: DecoderConfig, found: Mapping[str, tuple[int, ...]]) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Pairs each of our parameters with names among `found`; raises first where one is missing, left over or of another shape."""
    prefix = NAMES[config.family].prefix
    bare = not any(name.startswith(prefix) for name in found)
    wanted: dict[str, tuple[str, ...]] = {}
    shapes: dict[str, tuple[int, ...]] = {}
    with torch.device("meta"):
        model = Decoder(config)
    for ours, parameter in model.named_parameters():
        pieces = {
            (name.removeprefix(prefix) if bare else name): tuple(piece.shape)
            for name, piece in to_hf(config, ours, parameter).items()
        }
        wanted[ours] = tuple(pieces)
        shapes.update(pieces)
    ignored = {"lm_head.weight"} if config.tied_head else set()
    left_over = [name for name in found if name not in shapes and name not in ignored and not COMPUTED.search(name)]
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
    return iter(wanted.items())


def _first(problems: Sequence[str]) -> str:
    more = f"; and {len(problems) - 4} more" if len(problems) > 4 else ""
    return "; ".join(problems[:4]) + more


def _is_conv1d(config: DecoderConfig, ours: str) -> bool:
    return (
        NAMES[config.family].conv1d
        and ours.startswith("blocks.")
        and ours.endswith((".qkv.weight", ".out.weight", ".up.weight", ".down.weight"))
    )


def split_groups(config: DecoderConfig, value: Tensor) -> Iterable[Tensor]:
    """Rows by group (its queries, key, value) -> all queries, all keys, all values."""
    each = config.heads // config.groups
    grouped = value.view(config.groups, each + 2, config.head_width, *value.shape[1:])
    return (part.reshape(-1, *value.shape[1:]) for part in (grouped[:, :each], grouped[:, each], grouped[:, each + 1]))


def join_groups(config: DecoderConfig, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    rest = q.shape[1:]
    parts = (part.reshape(config.groups, -1, config.head_width, *rest) for part in (q, k, v))
    return torch.cat(tuple(parts), dim=1).reshape(-1, *rest)
