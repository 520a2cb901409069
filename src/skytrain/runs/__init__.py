"""Runs: what was asked for, each attempt at it, its metrics, and how progress is reported to whoever watches."""

from .metrics import MetricsWriter, read_metrics
from .record import RunRecord, claim_attempt, config_changes, find_run, load_run, run_name, save_run, write_outcome
from .reporting import Reporter, Silent

__all__ = [
    "MetricsWriter",
    "Reporter",
    "RunRecord",
    "Silent",
    "claim_attempt",
    "config_changes",
    "find_run",
    "load_run",
    "read_metrics",
    "run_name",
    "save_run",
    "write_outcome",
]
