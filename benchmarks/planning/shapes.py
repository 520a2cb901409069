"""The decoders on which the planner is checked on a GPU: the configuration groups, with other position tables."""

from __future__ import annotations

from dataclasses import replace

from skytrain.config import DecoderConfig, compose
from skytrain.planning import Mesh


def model_named(group: str, max_length: int) -> DecoderConfig:
    model = compose([f"model={group}"]).config.model
    assert isinstance(model, DecoderConfig)
    return replace(model, max_length=max_length)


SINGLE = Mesh()
OPTIMIZER = compose(["optimizer.lr=1e-4"]).config.optimizer
GPT2 = model_named("gpt2-124m", 4096)
MEDIUM = model_named("gpt2-355m", 4096)
LLAMA = replace(model_named("llama-3.2-1b", 65536), rope_scaling=None)
MODERN = model_named("modern-124m", 65536)
TINY = replace(GPT2, name="tiny", layers=2, width=64, heads=4, vocab_size=1000)
MODELS = {model.name: model for model in (GPT2, MEDIUM, LLAMA, MODERN, TINY)}
