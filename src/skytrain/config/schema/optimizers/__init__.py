"""The optimizers: each module here declares one, and is found by being here.

A module holds the optimizer's settings, a subclass of `OptimizerConfig`, and names them `OPTIMIZER`. The class that does the
work is given by its path, so nothing here loads torch. docs/extending.md adds one step by step.
"""

from __future__ import annotations

from ...discovery import discover
from .base import OptimizerConfig, OptimizerFacts

__all__ = ["OPTIMIZERS", "OptimizerConfig", "OptimizerFacts"]

OPTIMIZERS: tuple[type[OptimizerConfig], ...] = tuple(discover(__name__, "OPTIMIZER").values())
