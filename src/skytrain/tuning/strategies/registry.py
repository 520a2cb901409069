"""Strategies by name. A module of this package with a `STRATEGY` is one; `a+b` composes two."""

from __future__ import annotations

from importlib import import_module
from pkgutil import iter_modules

from ...config import SkytrainError, nearest
from .base import Strategy
from .chain import Chain


def all_strategies() -> dict[str, Strategy]:
    """Every strategy by its name."""
    package = __name__.rpartition(".")[0]
    modules = [import_module(f"{package}.{module.name}") for module in iter_modules(import_module(package).__path__)]
    found = [module.STRATEGY for module in modules if hasattr(module, "STRATEGY")]
    return {one.name: one for one in found}


def find_strategy(name: str) -> Strategy:
    """The strategy of that name; names joined by `+` run one after another."""
    known = all_strategies()
    parts = name.split("+")
    for part in parts:
        if part not in known:
            guess = nearest(part, known)
            hint = f"did you mean {guess}?  " if guess else ""
            raise SkytrainError(f"tune.strategy: {part!r} is not a strategy\n  {hint}one of {', '.join(sorted(known))}")
    return known[parts[0]] if len(parts) == 1 else Chain([known[part] for part in parts])
