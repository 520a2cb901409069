"""Choose the device of a model, and check which precisions it supports."""

from __future__ import annotations

from typing import Literal

import torch

from ..config import ConfigError, Precision


def choose_device_type(wanted: str) -> str:
    """Return `cuda` or `cpu` for the value of trainer.device.

    Raises ConfigError if `cuda` is requested and torch sees no GPU; there is no silent fallback to the CPU.
    """
    present = torch.cuda.is_available()
    if wanted == "cuda" and not present:
        raise ConfigError(
            "trainer.device", "'cuda' is asked for, but torch sees no GPU here", hint="try trainer.device=cpu"
        )
    return "cuda" if present and wanted != "cpu" else "cpu"


def resolve_precision(device: str, precision: Literal["auto", Precision]) -> Precision:
    """Resolve `auto` to bf16-mixed on a GPU that supports bf16, otherwise to 32-true."""
    if precision != "auto":
        return precision
    return "bf16-mixed" if device == "cuda" and _has_bf16() else "32-true"


def check_precision(device: str, precision: str, key: str = "trainer.precision") -> None:
    """Raise ConfigError, naming `key`, if the device does not support this precision."""
    if device == "cuda" and precision in ("bf16-mixed", "bf16-true") and not _has_bf16():
        raise ConfigError(
            key,
            f"{precision!r}: {torch.cuda.get_device_name()} has no bf16",
            hint=f"try {key}=16-mixed or {key}=32-true",
        )
    if device == "cpu" and precision == "16-mixed":
        raise ConfigError(key, "'16-mixed' needs a GPU, and this is a CPU", hint=f"try {key}=bf16-mixed")


def _has_bf16() -> bool:
    return torch.cuda.is_bf16_supported(including_emulation=False)
