"""Generate: a model and a prompt in, text out as it is generated."""

from __future__ import annotations

from collections.abc import Iterator

from ..config import Config
from ..evaluation import Sampling, generate as continue_text, place_model
from ..storage import open_store


def generate(
    config: Config,
    source: str | None,
    prompt: str,
    sampling: Sampling,
    *,
    max_tokens: int,
    precision: str | None = None,
) -> Iterator[str]:
    """Return the text after the prompt, piece by piece as it is generated.

    The model is loaded before this returns, so that errors come before any text.
    """
    placed = place_model(config, open_store(config.store), source, precision)
    return continue_text(placed.model, placed.tokenizer, prompt, sampling, max_tokens=max_tokens)
