"""Initial weights: each depends on the seed and the parameter's name only, not on order or on how a model is divided."""

from __future__ import annotations

import hashlib

import torch
from torch import Tensor, nn

from ..config import DecoderConfig
from .decoder import Decoder
from .parametrization import initial_std

VOCABULARY = ("embedding.tokens.weight", "head.projection.weight")


def initialise(model: Decoder, seed: int, device: torch.device | str = "cpu") -> None:
    """Allocate every parameter of a model on the meta device, with its initial value."""
    for name, parameter in list(model.named_parameters()):
        owner, _, leaf = name.rpartition(".")
        value = initial_value(model.config, name, parameter.shape, seed)
        setattr(model.get_submodule(owner), leaf, nn.Parameter(value.to(device), requires_grad=parameter.requires_grad))
    model.tie()


def initial_value(config: DecoderConfig, name: str, shape: torch.Size, seed: int) -> Tensor:
    """Return the value of one parameter as a complete float32 tensor on the CPU."""
    if name.endswith("bias"):
        return torch.zeros(shape)
    if len(shape) == 1:
        return torch.zeros(shape) if config.norm == "rmsnorm_plus_one" else torch.ones(shape)
    digest = hashlib.sha256(f"{seed}:{name}".encode()).digest()
    generator = torch.Generator().manual_seed(int.from_bytes(digest[:8], "big") >> 1)
    value = torch.empty(shape).normal_(0.0, initial_std(config, name), generator=generator)
    if name in VOCABULARY:
        value[config.vocab_size :] = 0.0
    return value
