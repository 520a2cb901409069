"""Runs: the run record, attempts, cost metering, metrics, logs, status and progress reporting."""

from ..lazy import public_names

__getattr__, __dir__, __all__ = public_names(__name__, __file__)
