"""A model to use, from a run's checkpoint or from an exported folder."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors.torch import load_file
from torch import nn

from ..config import ModelConfig, SkytrainError, TokenizerConfig, build
from ..models import build_model, load_hf_folder
from ..runs import RunRecord, find_run
from ..storage import Store
from ..tokens import Tokenizer, load_tokenizer_folder, open_tokenizer
from .folder import FolderReader, committed_steps, step_key
from .lightning_io import MODEL, STATE
from .tree import join_tensors

MODULE_PREFIX = "model."  # the LightningModule holds the model under this name


@dataclass(frozen=True)
class LoadedModel:
    """A model with its tokenizer, and where it came from."""

    model: nn.Module
    tokenizer: Tokenizer
    label: str
    run: RunRecord | None


def load_model(store: Store, source: str | None) -> LoadedModel:
    """`source` is a run, `run@step`, or a folder in Hugging Face's layout; without one, the newest run."""
    if source and Path(source).is_dir():
        return LoadedModel(load_hf_folder(Path(source)), load_tokenizer_folder(Path(source)), source, None)
    name, _, step_text = (source or "").partition("@")
    record = find_run(store, name or None)
    step = _choose_step(store, record.name, step_text)
    model = build_model(build(ModelConfig, record.config["model"], "model"), seed=record.seed, start_weights=False)
    model.load_state_dict(_weights(store, step_key(record.name, step)))
    model.eval()
    tokenizer = open_tokenizer(
        build(TokenizerConfig, record.config["tokenizer"], "tokenizer"), store, record.tokenizer_id
    )
    return LoadedModel(model, tokenizer, f"{record.name}@{step}", record)


def _choose_step(store: Store, run: str, text: str) -> int:
    steps = committed_steps(store, run)
    if not steps:
        raise SkytrainError(f"run {run!r} has no committed checkpoint yet")
    if not text:
        return steps[-1]
    if not text.isdigit() or int(text) not in steps:
        raise SkytrainError(f"run {run!r} has no checkpoint at step {text!r}\n  it has {', '.join(map(str, steps))}")
    return int(text)


def _weights(store: Store, key: str) -> dict[str, Any]:
    with FolderReader(store, key) as folder:
        names = json.loads(folder.fetch(STATE).read_text())["state_dict"]
        tensors = {f"/{name}": tensor for name, tensor in load_file(folder.fetch(MODEL)).items()}
    state = join_tensors(names, tensors)
    return {name.removeprefix(MODULE_PREFIX): tensor for name, tensor in state.items()}
