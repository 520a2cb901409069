"""Positions of tokens: which ones a batch holds, rotary angles, and ways to extend them to longer sequences."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass

import torch
from torch import Tensor

from ..config import DecoderConfig, DynamicRope, Llama3Rope, YarnCustomRope, YarnRope
from .yarn import yarn_magnitude

Rotation = tuple[Tensor, Tensor]  # cos and sin, each (T, head size)


@dataclass(frozen=True)
class TokenPositions:
    """The positions that a batch holds of each sequence, for batches that hold only a part of it."""

    length: int  # tokens in the whole sequence
    ranges: tuple[range, ...]

    def tensor(self, device: torch.device) -> Tensor:
        return torch.cat([torch.arange(each.start, each.stop, device=device) for each in self.ranges])

    def cut(self, x_bt: Tensor) -> Tensor:
        """Select these positions from whole sequences."""
        return torch.cat([x_bt[:, each.start : each.stop] for each in self.ranges], dim=1)


def rotation(config: DecoderConfig, start: int, length: int, device: torch.device, *, window: bool = False) -> Rotation:
    """Return cos and sin of the angles at positions start ... start + length - 1; with `window` those of layers that
    have a base of their own.

    Computed in each pass rather than kept in a buffer: it costs nothing next to a matrix product, and a model built on
    the meta device then holds nothing but parameters.
    """
    if window:
        config = dataclasses.replace(config, rope_theta=config.window_theta, rope_scaling=None)
    frequencies, magnitude = _frequencies(config, start + length, device)
    positions = torch.arange(start, start + length, device=device, dtype=torch.float32)
    angles = torch.outer(positions, frequencies)
    angles = torch.cat((angles, angles), dim=-1)
    return angles.cos() * magnitude, angles.sin() * magnitude


def rotation_at(whole: Rotation, places_bt: Tensor) -> Rotation:
    """Return the angles at given positions, for all heads."""
    cos, sin = whole
    return cos[places_bt].unsqueeze(1), sin[places_bt].unsqueeze(1)


def rotate(x_bhtq: Tensor, by: Rotation) -> Tensor:
    """Turn each pair (i, i + Q/2) by its position's angle, in float32 as the angles are."""
    cos, sin = by
    first, second = x_bhtq.float().chunk(2, dim=-1)
    turned = torch.cat((-second, first), dim=-1)
    return (x_bhtq.float() * cos + turned * sin).type_as(x_bhtq)


def halves_of_pairs(x_bhtq: Tensor) -> Tensor:
    """Put the first numbers of neighbouring pairs before all second ones, as `rotate` takes them."""
    return torch.cat((x_bhtq[..., 0::2], x_bhtq[..., 1::2]), dim=-1)


def stable_length(config: DecoderConfig) -> int:
    """Return the length up to which angles do not depend on the length of the sequence, so that cached keys stay valid."""
    scaling = config.rope_scaling
    return scaling.original_length if isinstance(scaling, DynamicRope) else config.max_length


def _frequencies(config: DecoderConfig, length: int, device: torch.device) -> tuple[Tensor, float]:
    """Return the radians per position of each pair, and a factor on cos and sin."""
    assert config.rope_theta is not None
    size = config.rotary_width
    theta = config.rope_theta
    scaling = config.rope_scaling
    if isinstance(scaling, DynamicRope) and length > scaling.original_length:
        stretch = scaling.factor * length / scaling.original_length - (scaling.factor - 1)
        theta *= stretch ** (size / (size - 2))
    plain = 1.0 / theta ** (torch.arange(0, size, 2, device=device, dtype=torch.float32) / size)
    if scaling is None or isinstance(scaling, DynamicRope):
        return plain, 1.0
    if isinstance(scaling, Llama3Rope):
        return _llama3(plain, scaling), 1.0
    if isinstance(scaling, YarnRope):
        return _yarn(plain, scaling, theta, size), yarn_magnitude(scaling.factor)
    if isinstance(scaling, YarnCustomRope):
        return _yarn(plain, scaling, theta, size, truncate=scaling.truncate), scaling.magnitude
    return plain / scaling.factor, 1.0


def _llama3(plain: Tensor, scaling: Llama3Rope) -> Tensor:
    """Extend wavelengths that are longer than the original context, and keep much shorter ones."""
    turns = scaling.original_length * plain / (2 * math.pi)  # over the original context
    keep = ((turns - scaling.low_freq_factor) / (scaling.high_freq_factor - scaling.low_freq_factor)).clamp(0, 1)
    return (1 - keep) * plain / scaling.factor + keep * plain


def _yarn(
    plain: Tensor, scaling: YarnRope | YarnCustomRope, theta: float, size: int, *, truncate: bool = True
) -> Tensor:
    """Blend kept and extended frequencies by a ramp over the pair's index.

    It runs between the pairs that turn beta_fast and beta_slow times over the original context.
    """

    def index_of(turns: float) -> float:
        return size * math.log(scaling.original_length / (turns * 2 * math.pi)) / (2 * math.log(theta))

    low, high = index_of(scaling.beta_fast), index_of(scaling.beta_slow)
    if truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, size - 1)
    high = high + 0.001 if low == high else high
    steps = torch.arange(size // 2, device=plain.device, dtype=torch.float32)
    stretch = ((steps - low) / (high - low)).clamp(0, 1)  # as in transformers where `high` is below `low`, too
    return plain / scaling.factor * stretch + plain * (1 - stretch)
