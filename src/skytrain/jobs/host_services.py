"""What the node agent uses of its host and of the run's records, and its limits."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ..aws import Notice
from .generations import JobGeneration
from .node_job import NodeJob


@dataclass(frozen=True)
class HostServices:
    """What the agent uses of its host and of the run's records."""

    start_job: Callable[[JobGeneration, int], NodeJob]  # a generation, and this host's number in it
    spend: Callable[[], dict[str, Any]]  # this host's cost, until its next heartbeat
    notice: Callable[[], Notice | None] = lambda: None
    health: Callable[[], list[str]] = list  # problems of this host
    resumed_step: Callable[[], int | None] = lambda: None  # from which the newest attempt resumed
    stop_asked: Callable[[], str | None] = lambda: None
    budget_spent: Callable[[int], str | None] = lambda hosts: None  # for a run whose hosts wait


@dataclass(frozen=True)
class AgentLimits:
    max_restarts: int
    stop_seconds: float
    patience_seconds: float = 1800.0  # for which an agent without a job waits for a store that does not answer
    keep_seconds: float = 0.0  # for which the machine stays after the run has failed


@dataclass
class RequestPace:
    """When something is next due, by this host's clock."""

    seconds: float
    at: float = 0.0

    def due(self) -> bool:
        now = time.monotonic()
        if now < self.at:
            return False
        self.at = now + self.seconds
        return True


@dataclass
class RunningJob:
    job: NodeJob
    generation: JobGeneration
    kill_at: float | None = None
