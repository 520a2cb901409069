"""Export: a model of ours in, a folder for other tools out."""

from __future__ import annotations

from pathlib import Path

from ..checkpoints import load_model
from ..config import Config
from ..export import export_hf
from ..storage import open_store


def export(config: Config, source: str | None, folder: Path) -> str:
    """Writes the folder and returns the label of what went into it."""
    loaded = load_model(open_store(config.store), source)
    export_hf(loaded.model, loaded.tokenizer, folder)
    return loaded.label
