"""Whether Triton can serve a tensor: on a GPU that it supports, or anywhere under its interpreter."""

from __future__ import annotations

import functools
import importlib.util
import os

import torch


@functools.cache
def has_triton() -> bool:
    return importlib.util.find_spec("triton") is not None


def interpreted() -> bool:
    """Triton's interpreter runs kernels on the CPU, slowly: for tests."""
    return os.environ.get("TRITON_INTERPRET") == "1"


def kernels_available(device: torch.device) -> bool:
    """bf16 and Triton came with Ampere; older GPUs take the plain path."""
    if not has_triton():
        return False
    if device.type == "cuda":
        return torch.cuda.get_device_capability(device) >= (8, 0)
    return interpreted()


def programs(device: torch.device, per_multiprocessor: int) -> int:
    """How many persistent programs to start: enough to fill the chip, few enough that partial sums stay small."""
    if device.type == "cuda":
        return torch.cuda.get_device_properties(device).multi_processor_count * per_multiprocessor
    return 2
