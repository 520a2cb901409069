"""Settings of the metrics that a running attempt offers to others."""

from __future__ import annotations

from typing import Annotated

from .declare import EXECUTION, setting, settings
from .kinds import Range

Port = Annotated[int, Range(min=1, max=65535)]


@settings
class MetricsConfig:
    """Metrics for Prometheus, served by rank 0 while it trains."""

    prometheus_port: Port | None = setting(
        EXECUTION, "Port at which rank 0 answers GET /metrics; null: it does not. `launch cloud=eks` sets 9464."
    )
    prometheus_address: str | None = setting(
        EXECUTION, "Address that it listens on; null: the pod's (POD_IP) in Kubernetes, otherwise 127.0.0.1."
    )
