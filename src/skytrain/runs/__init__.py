"""Runs: what was asked for, each attempt at it, what it costs, its metrics and logs, and how progress is reported."""

from .attempts import (
    Cause,
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
from .exits import EXIT_CODES, exit_code_of
from .meter import Meter
from .metrics import MetricsWriter, read_metrics, was_measured
from .reading import DamagedRecord
from .record import (
    RunRecord,
    Start,
    check_run_name,
    config_changes,
    create_run,
    list_runs,
    load_run,
    other_changes,
    run_name,
    save_run,
)
from .reporting import Reporter, Silent

__all__ = [
    "EXIT_CODES",
    "Cause",
    "DamagedRecord",
    "Fence",
    "Meter",
    "MetricsWriter",
    "Reporter",
    "RunRecord",
    "Silent",
    "Start",
    "Superseded",
    "attempt_key",
    "attempts",
    "check_newest",
    "check_run_name",
    "claim_attempt",
    "config_changes",
    "create_run",
    "exit_code_of",
    "list_runs",
    "load_run",
    "other_changes",
    "read_fence",
    "read_metrics",
    "read_outcome",
    "record_resume",
    "run_name",
    "save_run",
    "was_measured",
    "write_outcome",
]
