"""Positions of a batch's tokens within their sequences."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Places:
    """The positions that a batch holds of each sequence, for batches that hold only a part of it."""

    length: int  # tokens in the whole sequence
    ranges: tuple[range, ...]

    def tensor(self, device: torch.device) -> Tensor:
        return torch.cat([torch.arange(each.start, each.stop, device=device) for each in self.ranges])

    def cut(self, x_bt: Tensor) -> Tensor:
        """Select these positions from whole sequences."""
        return torch.cat([x_bt[:, each.start : each.stop] for each in self.ranges], dim=1)
