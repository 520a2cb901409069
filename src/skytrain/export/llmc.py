"""Exports to llm.c: a single model file."""

from __future__ import annotations

from pathlib import Path

from torch import nn

from ..config import SkytrainError
from ..models import Decoder, save_llmc
from .hf import DTYPES, Dtype


def export_llmc(model: nn.Module, path: str | Path, dtype: Dtype = "fp32") -> Path:
    """Write a new model file, which appears only when it is complete."""
    if dtype == "fp16":
        raise SkytrainError("llm.c's model files have float32 or bfloat16 weights\n  --dtype fp32 or --dtype bf16")
    if not isinstance(model, Decoder):
        raise SkytrainError(
            f"{type(model).__name__} is a custom model; only the built-in decoder can be exported to llm.c"
        )
    target = Path(path)
    if target.exists():
        raise SkytrainError(f"{target} exists\n  choose another name, or remove it first")
    draft = target.with_name(f".{target.name}.partial")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        save_llmc(model, draft, DTYPES[dtype])
        draft.replace(target)
    except OSError as error:
        raise SkytrainError(f"{target} cannot be written: {error}") from error
    finally:
        draft.unlink(missing_ok=True)
    return target
