"""The optimizers: each module here declares one, and is found by being here.

A module holds the optimizer's settings, a subclass of `OptimizerConfig`. The class that does the work is named by its path,
so nothing here loads torch. docs/extending.md adds one step by step.
"""

from __future__ import annotations

from importlib import import_module
from pkgutil import iter_modules

from .base import OptimizerConfig, OptimizerFacts

__all__ = ["OPTIMIZERS", "OptimizerConfig", "OptimizerFacts"]


def _found() -> tuple[type[OptimizerConfig], ...]:
    modules = [import_module(f".{module.name}", __name__) for module in iter_modules(__path__)]
    return tuple(
        value
        for module in modules
        for value in vars(module).values()
        if isinstance(value, type) and issubclass(value, OptimizerConfig) and value.__module__ == module.__name__
        if value is not OptimizerConfig
    )


OPTIMIZERS = _found()
