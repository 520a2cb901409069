"""Settings of the metrics that a running attempt offers to others, and where W&B keeps them."""

from __future__ import annotations

from typing import Annotated, Literal

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


@settings
class WandbConfig:
    """Where the logger `wandb` writes. Its API key is a secret: WANDB_API_KEY, or cloud.secrets."""

    project: str = setting(EXECUTION, "Project of Weights & Biases.")
    entity: str | None = setting(EXECUTION, "Team or user; null: that of the API key.")
    group: str | None = setting(EXECUTION, "Group of runs; null: none.")
    tags: list[str] = setting(EXECUTION, "Tags of the run.")
    mode: Literal["online", "offline"] = setting(EXECUTION, "Offline writes files only, for `wandb sync`.")
