"""Which device a model runs on, and which precisions that device has."""

from __future__ import annotations

import torch

from ..config import ConfigError


def choose_device_type(wanted: str) -> str:
    """`cuda` or `cpu` for trainer.device; a request that this machine cannot meet is an error, not a quiet fallback."""
    present = torch.cuda.is_available()
    if wanted == "cuda" and not present:
        raise ConfigError(
            "trainer.device", "'cuda' is asked for, but torch sees no GPU here", hint="try trainer.device=cpu"
        )
    return "cuda" if present and wanted != "cpu" else "cpu"


def check_precision(device: str, precision: str, key: str = "trainer.precision") -> None:
    """Raises ConfigError, naming `key`, where the device does not compute in this precision."""
    if (
        device == "cuda"
        and precision in ("bf16-mixed", "bf16-true")
        and not torch.cuda.is_bf16_supported(including_emulation=False)
    ):
        raise ConfigError(
            key,
            f"{precision!r}: {torch.cuda.get_device_name()} has no bf16",
            hint=f"try {key}=16-mixed or {key}=32-true",
        )
    if device == "cpu" and precision == "16-mixed":
        raise ConfigError(key, "'16-mixed' needs a GPU, and this is a CPU", hint=f"try {key}=bf16-mixed")
