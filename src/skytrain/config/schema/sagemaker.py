"""Settings of SageMaker training jobs: the container, and what AWS does around it."""

from __future__ import annotations

from typing import Annotated

from .declare import EXECUTION, setting, settings
from .kinds import Positive, PositiveFloat, Range, Seconds


@settings
class SageMakerConfig:
    """SageMaker training jobs; cloud=sagemaker."""

    image: str | None = setting(
        EXECUTION, "Container image in ECR, by digest: ACCOUNT.dkr.ecr.REGION.amazonaws.com/NAME@sha256:..."
    )
    python: str = setting(EXECUTION, "Python of the image, whose torch is used.")
    python_version: str = setting(EXECUTION, "Version of that Python, for which packages are collected.")
    torch_version: str = setting(EXECUTION, "Version of the image's torch.")
    role: str | None = setting(EXECUTION, "ARN of the role of the containers; null: roles.node.")
    retries: Annotated[int, Range(min=1, max=30)] = setting(
        EXECUTION, "Restarts of the job after failures of SageMaker itself."
    )
    wait: Seconds = setting(EXECUTION, "How long a job may wait for spot machines, all waits together.")
    volume_gb: Positive | None = setting(
        EXECUTION, "Disk of each machine in GB; null: the plan's. Types with NVMe disks use those."
    )
    warm_pool: Annotated[Seconds, Range(min=0, max=21600)] = setting(
        EXECUTION, "How long machines are kept, and paid for, after the job for the next one; not with spot. 0s: no."
    )
    training_plan: str | None = setting(
        EXECUTION, "ARN of a SageMaker training plan that you have bought; not with spot."
    )
    encrypt_traffic: bool = setting(EXECUTION, "Encrypt the traffic between machines; it slows training.")
    environment: dict[str, str] = setting(EXECUTION, "Environment variables of the container; no secrets.")
    usd_per_hour: PositiveFloat | None = setting(
        EXECUTION, "What one machine costs; null: the Pricing API's price on demand, the most that spot costs."
    )
    root: str = setting(EXECUTION, "Folder of SageMaker's files in the container.")
