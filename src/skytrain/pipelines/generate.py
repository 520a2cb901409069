"""Generate: a model and a prompt in, text out, piece by piece."""

from __future__ import annotations

from collections.abc import Iterator

from ..checkpoints import load_model
from ..config import Config
from ..evaluation.generate import generate as continue_text
from ..storage import open_store


def generate(
    config: Config,
    source: str | None,
    prompt: str,
    *,
    max_tokens: int,
    temperature: float,
    top_k: int | None,
    top_p: float | None,
    seed: int,
) -> Iterator[str]:
    loaded = load_model(open_store(config.store), source)
    yield from continue_text(
        loaded.model,
        loaded.tokenizer,
        prompt,
        max_tokens=max_tokens,
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        seed=seed,
    )
