"""A merged model for export: its weights are read from the checkpoint one by one, where the model allows it."""

from __future__ import annotations

import torch
from torch import Tensor

from ..checkpoints import LoadedModel, choose_checkpoint, load_model, open_checkpoint, step_key
from ..config import DecoderConfig, ModelConfig, TokenizerConfig, build
from ..models import Decoder
from ..storage import Store
from ..tokens import open_tokenizer


def open_merged(store: Store, run: str) -> LoadedModel:
    """A decoder is on the meta device, with `initial_values` that read the checkpoint; other models are loaded."""
    record, step = choose_checkpoint(store, run)
    config: ModelConfig = build(ModelConfig, record.config["model"], "model")
    if not isinstance(config, DecoderConfig):
        return load_model(store, run)
    saved = open_checkpoint(store, step_key(record.name, step)).model
    with torch.device("meta"):
        model = Decoder(config)

    def value(name: str, shape: torch.Size) -> Tensor:
        return saved.read_one(name)

    model.initial_values = value
    tokenizer = build(TokenizerConfig, record.config["tokenizer"], "tokenizer")
    label = f"{record.name}@{step}"
    return LoadedModel(model, open_tokenizer(tokenizer, store, record.tokenizer_id), label, record)
