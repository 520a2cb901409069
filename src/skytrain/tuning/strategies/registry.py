"""Strategies by name. A module of this package with a `STRATEGY` is one; `a+b` composes two."""

from __future__ import annotations

from ...config import SkytrainError, discover, nearest
from .base import Strategy
from .chain import Chain


def all_strategies() -> dict[str, Strategy]:
    """Return every strategy by its name."""
    strategies = discover(__name__.rpartition(".")[0], "STRATEGY").values()
    return {strategy.name: strategy for strategy in strategies}


def find_strategy(name: str) -> Strategy:
    """Return the strategy of that name; names joined by `+` run one after another."""
    known = all_strategies()
    parts = name.split("+")
    for part in parts:
        if part not in known:
            guess = nearest(part, known)
            hint = f"did you mean {guess}?  " if guess else ""
            raise SkytrainError(f"tune.strategy: {part!r} is not a strategy\n  {hint}one of {', '.join(sorted(known))}")
    return known[parts[0]] if len(parts) == 1 else Chain([known[part] for part in parts])
