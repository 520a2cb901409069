"""Export: a trained model in, a folder or file for other tools out."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from ..checkpoints import load_model
from ..config import Config
from ..export import export_hf, export_llmc
from ..storage import open_store


def export(config: Config, source: str | None, out: Path, to: Literal["hf", "llm.c"] = "hf") -> str:
    """Writes the model to `out`; returns the label of what was exported."""
    loaded = load_model(open_store(config.store), source)
    if to == "hf":
        export_hf(loaded.model, loaded.tokenizer, out)
    else:
        export_llmc(loaded.model, out)
    return loaded.label
