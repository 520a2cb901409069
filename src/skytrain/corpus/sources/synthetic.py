"""Random tokens of a given distribution, for benchmarks that need no text."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from ...config import ConfigError, SkytrainError, parse_count

KEY = "data.source"


@dataclass(frozen=True)
class Synthetic:
    """Random tokens in documents of `document_tokens` on average; the same seed gives the same tokens."""

    tokens: int | str = "1M"
    document_tokens: int | str = 512
    distribution: str = "zipf"
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("tokens", "document_tokens"):
            try:
                count = parse_count(getattr(self, name))
            except ValueError as error:
                raise ConfigError(f"{KEY}.{name}", f"{getattr(self, name)!r}: {error}") from None
            if count < 1:
                raise ConfigError(f"{KEY}.{name}", f"{count} must be at least 1")
            object.__setattr__(self, name, count)
        if self.distribution not in ("zipf", "uniform"):
            raise ConfigError(
                f"{KEY}.distribution", f"{self.distribution!r} is not a choice", hint="one of zipf, uniform"
            )

    def fingerprint(self) -> dict[str, Any]:
        return {
            "tokens": self.tokens,
            "document_tokens": self.document_tokens,
            "distribution": self.distribution,
            "seed": self.seed,
        }

    def documents(self) -> Iterator[Any]:
        raise SkytrainError("data=synthetic has tokens but no text: call token_documents(vocab_size)")

    def token_documents(self, vocab_size: int) -> Iterator[np.ndarray]:
        """Yield documents of ids below `vocab_size`, `tokens` ids in total."""
        assert isinstance(self.tokens, int) and isinstance(self.document_tokens, int)
        generator = np.random.default_rng(self.seed)
        # Zipf's law with exponent 1 over the vocabulary, drawn by inverting its cumulative sum.
        cumulative = np.cumsum(1.0 / np.arange(1, vocab_size + 1))
        cumulative /= cumulative[-1]
        left = self.tokens
        while left:
            length = min(left, 1 + int(generator.poisson(self.document_tokens - 1)))
            left -= length
            if self.distribution == "uniform":
                yield generator.integers(0, vocab_size, length, dtype=np.uint32)
            else:
                yield np.searchsorted(cumulative, generator.random(length), side="right").astype(np.uint32)
