"""Whether Triton kernels can run: on a GPU that Triton supports, or on any device under its interpreter."""

from __future__ import annotations

import functools
import importlib.util
from dataclasses import dataclass

import torch

from ...config import triton_is_interpreted


@dataclass(frozen=True)
class Launch:
    """Launch parameters of a kernel, chosen by measurement (benchmarks/training/kernels.py)."""

    tile: int  # rows per program and iteration, or elements for an elementwise kernel
    warps: int
    per_multiprocessor: int = 0  # persistent programs per multiprocessor, for kernels that sum over rows
    stages: int = 1  # software-pipelining stages, for kernels with a loop


@functools.cache
def has_triton() -> bool:
    return importlib.util.find_spec("triton") is not None


def kernels_available(device: torch.device) -> bool:
    """Return whether the kernels can run on a device: they need Triton and, on a GPU, bf16 (Ampere or later)."""
    if not has_triton():
        return False
    if device.type == "cuda":
        return torch.cuda.get_device_capability(device) >= (8, 0)
    return triton_is_interpreted()


def programs(device: torch.device, per_multiprocessor: int) -> int:
    """Return the number of persistent programs: enough to fill the GPU, few enough to keep partial sums small."""
    if device.type == "cuda":
        return torch.cuda.get_device_properties(device).multi_processor_count * per_multiprocessor
    return 2
