"""Runs: what was asked for, each attempt at it, its metrics, and how progress is reported to whoever watches."""

from .attempts import (
    EXIT_CODES,
    Fence,
    Superseded,
    attempt_key,
    attempts,
    check_newest,
    claim_attempt,
    read_fence,
    read_outcome,
    record_resume,
    write_outcome,
)
from .metrics import MetricsWriter, read_metrics
from .record import RunRecord, config_changes, find_run, load_run, run_name, save_run
from .reporting import Reporter, Silent

__all__ = [
    "EXIT_CODES",
    "Fence",
    "MetricsWriter",
    "Reporter",
    "RunRecord",
    "Silent",
    "Superseded",
    "attempt_key",
    "attempts",
    "check_newest",
    "claim_attempt",
    "config_changes",
    "find_run",
    "load_run",
    "read_fence",
    "read_metrics",
    "read_outcome",
    "record_resume",
    "run_name",
    "save_run",
    "write_outcome",
]
