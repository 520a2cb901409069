"""Positions of a batch's tokens in their sequences."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Places:
    """The positions of each sequence that a batch holds, where it holds only a part."""

    length: int  # of the whole sequence
    ranges: tuple[range, ...]

    def tensor(self, device: torch.device) -> Tensor:
        return torch.cat([torch.arange(each.start, each.stop, device=device) for each in self.ranges])

    def cut(self, x_bt: Tensor) -> Tensor:
        """This part of whole sequences."""
        return torch.cat([x_bt[:, each.start : each.stop] for each in self.ranges], dim=1)
