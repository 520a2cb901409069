from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch

from skytrain.config import DecoderConfig, compose


@functools.cache
def published(choice: str) -> DecoderConfig:
    config = compose([f"model={choice}"]).config.model
    assert isinstance(config, DecoderConfig)
    return config


@pytest.fixture
def decoder_config() -> Callable[..., DecoderConfig]:
    """A small decoder of one of the configuration files, with some fields changed."""

    def make(choice: str = "gpt2-tiny", **changes: Any) -> DecoderConfig:
        small = {"layers": 2, "width": 48, "heads": 4, "vocab_size": 101, "pad_vocab_to": 16, "max_length": 32}
        return dataclasses.replace(published(choice), **{**small, **changes})

    return make


@pytest.fixture
def random_tokens() -> Callable[..., torch.Tensor]:
    def make(vocab_size: int = 101, batch: int = 2, length: int = 16, seed: int = 0) -> torch.Tensor:
        return torch.randint(0, vocab_size, (batch, length), generator=torch.Generator().manual_seed(seed))

    return make
