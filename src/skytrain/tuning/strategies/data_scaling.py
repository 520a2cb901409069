"""Data scaling: the target's model on several short horizons, continued to the target's."""

from __future__ import annotations

from .base import horizon_rungs
from .scaling import Projection

STRATEGY = Projection("data-scaling", "optima of short horizons, projected to the target's", horizon_rungs, "tokens")
