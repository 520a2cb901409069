"""The MLP of a block."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..config import DecoderConfig


class MLP(nn.Module):
    def __init__(self, config: DecoderConfig, hidden: int) -> None:
        super().__init__()
        width = config.width
        bias = config.bias == "all"
        self.activation = Activation(config)
        self.gate = nn.Linear(width, hidden, bias=bias) if config.gated_mlp else None
        self.up = nn.Linear(width, hidden, bias=bias)
        self.down = nn.Linear(hidden, width, bias=bias)

    def forward(self, x_btd: Tensor) -> Tensor:
        up = self.up(x_btd)
        if self.gate is None:
            return self.down(self.activation.alone(up))
        return self.down(self.activation.gated(self.gate(x_btd), up))


class Activation:
    """What is computed between the products of an MLP or an expert."""

    def __init__(self, config: DecoderConfig) -> None:
        self.name = config.activation
        self.gain = config.activation_gain
        self.clamp = config.activation_clamp

    def alone(self, x: Tensor) -> Tensor:
        if self.name == "gelu_tanh":
            return F.gelu(x, approximate="tanh")
        return F.silu(x) if self.gain == 1.0 else x * torch.sigmoid(self.gain * x)

    def gated(self, gate: Tensor, up: Tensor) -> Tensor:
        if self.clamp is None:
            return self.alone(gate) * up
        return self.alone(gate.clamp(max=self.clamp)) * (up.clamp(min=-self.clamp, max=self.clamp) + 1)
