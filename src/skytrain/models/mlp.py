"""The MLP of a block."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn

from ..config import DecoderConfig


class MLP(nn.Module):
    def __init__(self, config: DecoderConfig, hidden: int) -> None:
        super().__init__()
        width = config.width
        bias = config.bias == "all"
        self.activation = config.activation
        self.gate = nn.Linear(width, hidden, bias=bias) if config.gated_mlp else None
        self.up = nn.Linear(width, hidden, bias=bias)
        self.down = nn.Linear(hidden, width, bias=bias)

    def forward(self, x_btd: Tensor) -> Tensor:
        up = self.up(x_btd)
        if self.gate is None:
            return self.down(activate(self.activation, up))
        return self.down(activate(self.activation, self.gate(x_btd)) * up)


def activate(name: str, x: Tensor) -> Tensor:
    return F.silu(x) if name == "silu" else F.gelu(x, approximate="tanh")
