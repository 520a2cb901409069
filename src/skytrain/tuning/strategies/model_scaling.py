"""Model scaling: small models of several sizes, continued to the target's size."""

from __future__ import annotations

from .base import size_rungs
from .scaling import Projection

STRATEGY = Projection(
    "model-scaling", "optima of small models, projected to the target's size", size_rungs, "parameters"
)
