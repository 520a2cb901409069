"""Norms of the decoder."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..config import DecoderConfig


class RMSNorm(nn.Module):
    """Root-mean-square norm. `plus_one`: the weight is the gain less one (Gemma), so that decay pulls the gain to one."""

    def __init__(self, size: int, eps: float, plus_one: bool) -> None:
        super().__init__()
        self.eps = eps
        self.plus_one = plus_one
        self.weight = nn.Parameter(torch.empty(size))

    def forward(self, x: Tensor) -> Tensor:
        if not self.plus_one:
            return F.rms_norm(x, self.weight.shape, self.weight, self.eps)
        # In bfloat16 a gain near one would lose what the weight adds to it.
        return F.rms_norm(x.float(), self.weight.shape, 1.0 + self.weight.float(), self.eps).type_as(x)


def make_norm(config: DecoderConfig, size: int, *, eps: float | None = None) -> nn.Module:
    if config.norm == "layernorm":
        return nn.LayerNorm(size, eps=eps or config.norm_eps)
    return RMSNorm(size, eps or config.norm_eps, plus_one=config.norm == "rmsnorm_plus_one")
