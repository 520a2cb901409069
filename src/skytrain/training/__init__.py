"""Training: the LightningModule, optimizers, learning-rate schedules, callbacks, and the trainer that joins them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .factory import TrainingPlan, make_trainer, plan_training
    from .module import CausalLM
    from .optimizers import Lion, make_optimizer
    from .schedules import learning_rate

__all__ = ["CausalLM", "Lion", "TrainingPlan", "learning_rate", "make_optimizer", "make_trainer", "plan_training"]

_HOMES = {
    "CausalLM": "module",
    "Lion": "optimizers",
    "TrainingPlan": "factory",
    "learning_rate": "schedules",
    "make_optimizer": "optimizers",
    "make_trainer": "factory",
    "plan_training": "factory",
}


def __getattr__(name: str) -> Any:
    """torch is loaded only when something that needs it is asked for."""
    import importlib

    if name in _HOMES:
        return getattr(importlib.import_module(f".{_HOMES[name]}", __name__), name)
    raise AttributeError(name)
