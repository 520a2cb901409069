"""Settings of training on Kubernetes: the cluster, the pods of a run, and how they are reached."""

from __future__ import annotations

from typing import Literal

from .declare import EXECUTION, setting, settings
from .kinds import Positive, PositiveFloat, Seconds


@settings
class EksConfig:
    """An EKS cluster; cloud=eks."""

    cluster: str | None = setting(
        EXECUTION,
        "Name of the EKS cluster, reached with the credentials of AWS; null: by a kubeconfig, or the cluster of this pod.",
    )
    kubeconfig: str | None = setting(EXECUTION, "File that says how to reach the cluster, where `cluster` is not set.")
    context: str | None = setting(EXECUTION, "Context of the kubeconfig; null: its current one.")
    namespace: str = setting(EXECUTION, "Namespace of training pods.")
    service_account: str = setting(EXECUTION, "Service account of training pods, whose role may use the bucket.")
    image: str | None = setting(EXECUTION, "Container image with Skytrain by digest, NAME@sha256:...")
    wait: Seconds = setting(EXECUTION, "How long pods may wait for nodes, in addition to the plan's kill time.")
    grace: Seconds = setting(
        EXECUTION, "Time from SIGTERM to SIGKILL, in which a pod saves; a spot node has 2 minutes."
    )
    environment: dict[str, str] = setting(EXECUTION, "Environment variables of the pods; no secrets.")
    volumes: dict[str, str] = setting(EXECUTION, "Volume claims of the namespace to mount, such as {fsx: /fsx}.")
    node_labels: dict[str, str] = setting(EXECUTION, "Labels that nodes must have, besides the plan's machine type.")
    instance_families: list[str] = setting(
        EXECUTION,
        "Families of machines that the cluster can start: karpenter.instance_families of infra/terraform/eks, and those "
        "of node groups; empty: any.",
    )
    priority_class: str | None = setting(EXECUTION, "Priority class of the pods; null: the cluster's default.")
    usd_per_hour: PositiveFloat | None = setting(
        EXECUTION, "What one machine costs; null: the plan's highest price of the machine in the region."
    )
    cpus: Positive | None = setting(
        EXECUTION, "CPUs of a pod, for a smoke test without GPUs and without a plan; null: the plan's machines."
    )
    nodes: Positive = setting(EXECUTION, "Pods of such a smoke test.")
    job_kind: Literal["job", "trainjob"] = setting(
        EXECUTION, "What a run is on Kubernetes: an Indexed Job, or a TrainJob of Kubeflow Trainer v2."
    )
