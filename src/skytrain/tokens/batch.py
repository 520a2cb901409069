"""A batch of training text, with the same named fields from the loader to the loss."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

IGNORED_TARGET = -100  # the default ignore_index of cross_entropy


@dataclass(slots=True, eq=False)
class Batch:
    """Windows of consecutive token ids. The model reads all but the last of each, and predicts all but the first.

    `tokens` and `targets` are views of the same windows, so that one copy of them travels to the device.
    """

    windows: Tensor  # (B, T + 1) int64
    mask: Tensor | None = None  # (B, T) bool: which targets count; None: all of them
    document_starts: Tensor | None = (
        None  # (B, T) bool: tokens that begin a document; None: documents are not separated
    )

    @property
    def tokens(self) -> Tensor:
        """The (B, T) ids that the model reads."""
        return self.windows[:, :-1]

    @property
    def targets(self) -> Tensor:
        """The (B, T) ids to predict after each token; IGNORED_TARGET where the target does not count."""
        targets = self.windows[:, 1:]
        return targets if self.mask is None else targets.masked_fill(~self.mask, IGNORED_TARGET)

    @property
    def rows(self) -> int:
        return len(self.windows)

    def take(self, rows: slice) -> Batch:
        """Return the batch of these rows."""
        return Batch(*(None if field is None else field[rows] for field in self._fields()))  # type: ignore[arg-type]

    def padded_to(self, rows: int) -> Batch:
        """Return a batch of `rows` rows, of which the additional ones have no target that counts."""
        more = rows - self.rows
        if not more:
            return self
        length = self.windows.size(1) - 1
        mask = self.windows.new_ones(self.rows, length, dtype=torch.bool) if self.mask is None else self.mask
        starts = self.document_starts
        return Batch(
            windows=torch.cat([self.windows, self.windows.new_zeros(more, length + 1)]),
            mask=torch.cat([mask, mask.new_zeros(more, length)]),
            document_starts=None if starts is None else torch.cat([starts, starts.new_ones(more, length)]),
        )

    def to(self, device: torch.device | str, **_: Any) -> Batch:
        """Copy to a device; pinned memory is copied while the host goes on. Lightning calls this method by name."""
        there = torch.device(device)
        return Batch(*(_moved(field, there) for field in self._fields()))  # type: ignore[arg-type]

    def pin_memory(self) -> Batch:
        """Copy to pinned memory. `DataLoader` calls this method by name."""
        return Batch(*(None if field is None else field.pin_memory() for field in self._fields()))  # type: ignore[arg-type]

    def _fields(self) -> tuple[Tensor | None, ...]:
        return self.windows, self.mask, self.document_starts


def batch_of(windows: np.ndarray, mask: np.ndarray | None, document_starts: np.ndarray | None) -> Batch:
    """Return a batch of these arrays, without a copy."""
    return Batch(
        torch.from_numpy(windows),
        None if mask is None else torch.from_numpy(mask),
        None if document_starts is None else torch.from_numpy(document_starts),
    )


def as_batch(batch: Batch | Tensor) -> Batch:
    """Return the batch. A plain tensor of windows, from your own loader, is one whose targets all count."""
    return batch if isinstance(batch, Batch) else Batch(batch)


def _moved(field: Tensor | None, device: torch.device) -> Tensor | None:
    return None if field is None else field.to(device, non_blocking=device.type == "cuda")
