"""Settings of EMR: the Spark cluster, or the serverless application, that prepares data."""

from __future__ import annotations

from typing import Annotated

from .declare import EXECUTION, setting, settings
from .kinds import Positive, Range, Seconds


@settings
class EmrConfig:
    """EMR, for `launch prepare`; cloud=emr-serverless and cloud=emr."""

    release: str = setting(EXECUTION, "Release of EMR, 7.1 or later: its Spark 3.5 and its Python 3.11 run the job.")
    executors: Positive | None = setting(
        EXECUTION, "Most executors at a time; null: as many as the nodes of the cluster hold."
    )
    executor_cores: Positive = setting(EXECUTION, "Cores of an executor and of the driver.")
    executor_gb: Positive = setting(
        EXECUTION, "Memory of an executor and of the driver in GB, JVM and Python together: 2 or more for each core."
    )
    disk_gb: Positive = setting(
        EXECUTION, "Disk of each executor (serverless: 20 to 200), or node (10 to 16384), in GB."
    )
    timeout: Annotated[Seconds, Range(min=300, max=604800)] = setting(
        EXECUTION, "Longest time of an attempt; then it is ended, and the same command resumes."
    )
    retries: Annotated[int, Range(min=0, max=9)] = setting(EXECUTION, "Attempts after the first one failed.")
    idle: Annotated[Seconds, Range(min=60, max=604800)] = setting(
        EXECUTION, "Idle time after which AWS stops the application or ends the cluster."
    )
    primary: str = setting(EXECUTION, "Type of the cluster's primary node, which runs the driver; on demand.")
    core: str = setting(EXECUTION, "Type of its core nodes, on demand.")
    core_nodes: Positive = setting(EXECUTION, "Number of core nodes.")
    task: str = setting(EXECUTION, "Type of its task nodes, on spot: losing one costs time, not results.")
    task_nodes: Annotated[int, Range(min=0)] = setting(EXECUTION, "Number of task nodes; 0: none.")
    root_disk_gb: Annotated[int, Range(min=15, max=100)] = setting(
        EXECUTION, "Root disk of each node of a cluster in GB: programs and what a bootstrap installs."
    )
    applications: list[str] = setting(
        EXECUTION, "What a cluster installs: Spark, and for notebooks such as JupyterHub or JupyterEnterpriseGateway."
    )
    keep_alive: bool = setting(
        EXECUTION, "Keep the cluster when its step has ended, for notebooks, until it was idle for `idle`."
    )
    image: str | None = setting(
        EXECUTION,
        "Image of a cluster's nodes (ami-...), or of the workers of EMR Serverless (in ECR); null: that of the release.",
    )
