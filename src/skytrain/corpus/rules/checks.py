"""Helpers of rules that compare counts with limits."""

from __future__ import annotations

import numpy as np

from .registry import Reasons


def share(part: np.ndarray, whole: np.ndarray) -> np.ndarray:
    return part / np.maximum(1, whole)


def first_failed(checks: dict[str, np.ndarray], size: int) -> Reasons:
    """For each text, the first check that failed."""
    names = list(checks)
    failed = np.stack(list(checks.values())) if size else np.zeros((len(names), 0), bool)
    first = np.where(failed.any(axis=0), failed.argmax(axis=0), len(names))
    return [[*names, None][i] for i in first.tolist()]
