"""The Kubernetes jobs of a run: shown beside its status, ended after its stop, and the logs of their pods."""

from __future__ import annotations

from collections.abc import Sequence

from ...aws import open_session
from ...config import Config, SkytrainError
from ..base import JobLog
from ..stopping import ActiveJob
from .jobs import EksJob, jobs_in_cluster, remove_job
from .kube import KubeCluster, KubeError, open_cluster

LOG_LINES = 200


def cluster_of(config: Config) -> KubeCluster:
    """Connect to the configuration's cluster."""
    return open_cluster(config.cloud.eks, lambda: open_session(config.cloud.region, config.cloud.account))


def cluster_words(config: Config) -> list[str]:
    """Return the settings by which other commands find the same cluster."""
    eks = config.cloud.eks
    named = {"cluster": eks.cluster, "kubeconfig": eks.kubeconfig, "context": eks.context}
    return ["cloud=eks", *(f"cloud.eks.{name}={value}" for name, value in named.items() if value is not None)]


def run_pods(config: Config, run: str) -> list[EksJob]:
    """The jobs of a run that the cluster has, newest first."""
    return jobs_in_cluster(cluster_of(config), config.cloud, run)


def eks_job_rows(jobs: Sequence[EksJob]) -> list[tuple[str, ...]]:
    """Jobs as a table, header first."""
    rows: list[tuple[str, ...]] = [("JOB", "KIND", "STATE", "PODS", "FAILED PODS", "REASON")]
    for job in jobs:
        running = sum(pod.phase == "Running" for pod in job.pods)
        pods = f"{running} of {job.nodes} run"
        rows.append((job.name, job.kind, job.state, pods, str(job.failed_pods), job.reason or "-"))
    return rows


def eks_job_tables(jobs: Sequence[EksJob]) -> list[list[tuple[str, ...]]]:
    """The jobs, and the pods of the newest one, where it has any."""
    return [eks_job_rows(jobs), *([pod_rows(jobs[0])] if jobs[0].pods else [])]


def pod_rows(job: EksJob) -> list[tuple[str, ...]]:
    """The pods of a job as a table, header first."""
    rows: list[tuple[str, ...]] = [("POD", "INDEX", "PHASE", "NODE", "REASON")]
    return [*rows, *((pod.name, pod.index, pod.phase, pod.node or "-", pod.reason or "-") for pod in job.pods)]


def active_eks_jobs(config: Config, run: str) -> list[ActiveJob]:
    """The jobs of a run that `stop` deletes."""
    cluster = cluster_of(config)

    def active(job: EksJob) -> ActiveJob:
        return ActiveJob(job.name, job.has_started, lambda: remove_job(cluster, config.cloud, job), "deleted")

    found = jobs_in_cluster(cluster, config.cloud, run)
    return [active(job) for job in found if job.state != "deleting" and not job.has_ended]


def pod_log(config: Config, run: str, lines: int | None) -> JobLog:
    """The end of what the pods of a run's newest job wrote; the reason of those that wait."""
    cluster = cluster_of(config)
    jobs = jobs_in_cluster(cluster, config.cloud, run)
    if not jobs:
        raise SkytrainError(f"run {run} has neither a log in the store nor a job in cluster {cluster.name}")
    told = []
    for pod in jobs[0].pods:
        if pod.phase == "Pending":
            told.append(f"[{pod.name}] waits: {pod.reason or 'no reason is known yet'}")
            continue
        try:
            text = cluster.log(config.cloud.eks.namespace, pod.name, lines or LOG_LINES)
        except KubeError as error:
            if error.status in (401, 403):
                raise
            told.append(f"[{pod.name}] its log cannot be read; is its node gone? {error.problem}")
            continue
        told += [f"[{pod.name}] {line}" for line in text.splitlines()]
    return JobLog(told or [f"{jobs[0].name}: {jobs[0].state}; it has no pods yet"], jobs[0].has_ended)
