"""Whether Triton can serve a tensor: on a GPU that it supports, or anywhere under its interpreter."""

from __future__ import annotations

import functools
import importlib.util
from dataclasses import dataclass

import torch

from ...config import triton_is_interpreted


@dataclass(frozen=True)
class Launch:
    """The shape of a kernel's work, chosen by measurement (benchmarks/training/kernels.py)."""

    tile: int  # rows of a program at a time, or elements where a kernel has no rows
    warps: int
    per_multiprocessor: int = 0  # persistent programs, where the kernel sums over rows
    stages: int = 1  # loads in flight ahead of their use, where the kernel loops


@functools.cache
def has_triton() -> bool:
    return importlib.util.find_spec("triton") is not None


def kernels_available(device: torch.device) -> bool:
    """bf16 and Triton came with Ampere; older GPUs take the plain path."""
    if not has_triton():
        return False
    if device.type == "cuda":
        return torch.cuda.get_device_capability(device) >= (8, 0)
    return triton_is_interpreted()


def programs(device: torch.device, per_multiprocessor: int) -> int:
    """How many persistent programs to start: enough to fill the chip, few enough that partial sums stay small."""
    if device.type == "cuda":
        return torch.cuda.get_device_properties(device).multi_processor_count * per_multiprocessor
    return 2
