"""The part that one rank holds of each tensor, copied to the host so that training can continue while it is written."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor
from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

from .ranges import ALIGNED_BYTES


@dataclass(frozen=True)
class TensorPart:
    """A rank's part of a tensor: its values, their offsets in the full tensor, and the shape of that."""

    values: Tensor
    offsets: tuple[int, ...]
    shape: tuple[int, ...]


def part_of(tensor: Tensor) -> TensorPart | None:
    """Return this rank's part of a tensor, or None if it has none."""
    tensor = tensor.detach()
    if isinstance(tensor, DTensor):
        _, offsets = compute_local_shape_and_global_offset(tensor.shape, tensor.device_mesh, tensor.placements)
        values = tensor.to_local()
        return TensorPart(values, tuple(offsets), tuple(tensor.shape)) if values.numel() else None
    return TensorPart(tensor, (0,) * tensor.ndim, tuple(tensor.shape)) if tensor.numel() else None


def cpu_parts(tensors: Mapping[str, Tensor]) -> dict[str, TensorPart]:
    """Return this rank's parts that are not empty, on the CPU."""
    return {name: part for name, tensor in tensors.items() if (part := part_of(tensor.cpu())) is not None}


class HostCopy:
    """One block of host memory, reused by every save.

    A copy from a GPU is fast only into pinned memory, and pinning takes longer than the copy, so it is done once.
    """

    def __init__(self, tell: Callable[[str], None]) -> None:
        self._tell = tell
        self._block: Tensor | None = None
        self._pinned = False

    def reserve(self, tensors: Mapping[str, Tensor]) -> None:
        """Allocate enough memory for these tensors."""
        parts = [part for tensor in tensors.values() if (part := part_of(tensor)) is not None]
        size = sum(_aligned(part.values) for part in parts)
        if self._block is not None and self._block.numel() >= size:
            return
        self.release()
        # Written once, so that the system allocates the pages now and not during a save.
        self._block = torch.zeros(size, dtype=torch.uint8)
        if any(part.values.is_cuda for part in parts):
            refused = int(torch.cuda.cudart().cudaHostRegister(self._block.data_ptr(), size, 0))
            self._pinned = not refused
            if refused:
                self._tell(f"checkpoints: {size} bytes of memory cannot be pinned, so copies from the GPU are slower")

    def take(self, tensors: Mapping[str, Tensor]) -> dict[str, TensorPart]:
        """Copy this rank's parts. The copy is valid until the next call."""
        self.reserve(tensors)
        assert self._block is not None
        taken: dict[str, TensorPart] = {}
        start = 0
        device = None
        for name, tensor in tensors.items():
            part = part_of(tensor)
            if part is None:
                continue
            values = part.values
            size = values.numel() * values.element_size()
            place = self._block[start : start + size].view(values.dtype).view(values.shape)
            place.copy_(values, non_blocking=self._pinned and values.is_cuda)
            device = values.device if values.is_cuda else device
            taken[name] = TensorPart(place, part.offsets, part.shape)
            start += _aligned(values)
        if device is not None:
            torch.cuda.current_stream(device).synchronize()
        return taken

    def release(self) -> None:
        if self._pinned:
            assert self._block is not None
            torch.cuda.cudart().cudaHostUnregister(self._block.data_ptr())
        self._block = None
        self._pinned = False


def _aligned(values: Tensor) -> int:
    return math.ceil(values.numel() * values.element_size() / ALIGNED_BYTES) * ALIGNED_BYTES
