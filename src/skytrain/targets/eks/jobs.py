"""The jobs of runs on Kubernetes and their pods, with the reason why a pod waits or has failed in one line."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from ...config import CloudConfig
from .kube import KubeCluster, KubeError, KubeKind, KubeObject
from .requests import TRAINER, run_labels

PENDING_WORDS = {
    "ImagePullBackOff": "the image cannot be pulled",
    "ErrImagePull": "the image cannot be pulled",
    "InvalidImageName": "the image's name is wrong",
    "CreateContainerConfigError": "the container cannot be made",
}
MESSAGE_LENGTH = 300
ENDED = ("Complete", "Failed")


@dataclass(frozen=True)
class EksPod:
    """One pod of a job."""

    name: str
    index: str
    phase: str  # Pending, Running, Succeeded, Failed
    node: str | None
    reason: str | None  # why it waits, or how it ended


@dataclass(frozen=True)
class EksJob:
    """One launch of a run in the cluster."""

    name: str
    kind: str  # Job, TrainJob
    state: str  # waiting, running, failing (its pods still end), complete, failed, suspended, deleting
    nodes: int
    failed_pods: int
    reason: str | None
    pods: tuple[EksPod, ...]

    @property
    def has_ended(self) -> bool:
        return self.state in ("complete", "failed")

    @property
    def has_started(self) -> bool:
        return any(pod.phase != "Pending" for pod in self.pods)


def jobs_in_cluster(cluster: KubeCluster, cloud: CloudConfig, run: str) -> list[EksJob]:
    """Return the jobs of a run that the cluster still has, newest first."""
    labels = run_labels(str(cloud.project), run)
    selector = ",".join(f"{name}={labels[name]}" for name in ("skytrain/project", "skytrain/run"))
    found = [*cluster.items(job_kind(cloud), labelSelector=selector), *_train_jobs(cluster, cloud, selector)]
    pods = cluster.items(KubeKind("v1", "Pod", cloud.eks.namespace), labelSelector=selector) if found else []
    jobs = [_job(each, pods) for each in found]
    jobs = [replace(job, reason=_no_pods(cluster, cloud, job)) if not job.pods else job for job in jobs]
    return sorted(jobs, key=lambda job: job.name, reverse=True)


def _train_jobs(cluster: KubeCluster, cloud: CloudConfig, selector: str) -> list[KubeObject]:
    """Return TrainJobs whatever `cloud.eks.job_kind` says now: a run may have been launched with the other kind."""
    try:
        return cluster.items(KubeKind(TRAINER, "TrainJob", cloud.eks.namespace), labelSelector=selector)
    except KubeError as error:
        if cloud.eks.job_kind != "trainjob" and error.status in (403, 404):  # a cluster without Kubeflow Trainer
            return []
        raise


def _no_pods(cluster: KubeCluster, cloud: CloudConfig, job: EksJob) -> str | None:
    """Return why a job has no pods: a quota or an admission policy refuses them, which only an event says."""
    if job.has_ended or job.reason:
        return job.reason
    selector = f"involvedObject.name={job.name},reason=FailedCreate"
    events = cluster.items(KubeKind("v1", "Event", cloud.eks.namespace), fieldSelector=selector)
    newest = max(events, key=lambda event: str(event.get("lastTimestamp") or ""), default={})
    return str(newest.get("message", ""))[:MESSAGE_LENGTH] or None


def check_quota(cluster: KubeCluster, cloud: CloudConfig, gpus: int) -> None:
    """Raise KubeError (exit code 4) if the namespace's ResourceQuota has no room for so many GPUs."""
    for quota in cluster.items(KubeKind("v1", "ResourceQuota", cloud.eks.namespace)):
        status = quota.get("status", {})
        for name in ("requests.nvidia.com/gpu", "limits.nvidia.com/gpu"):
            if name not in status.get("hard", {}):
                continue
            hard, used = (int(status.get(part, {}).get(name, 0)) for part in ("hard", "used"))
            if used + gpus > hard:
                raise KubeError(
                    f"the run needs {gpus} GPUs; namespace {cloud.eks.namespace} may have {hard}, and {used} are used "
                    f"(ResourceQuota {quota['metadata']['name']})",
                    fix="end another run, plan fewer GPUs, or raise the quota",
                    cause="quota",
                )


def job_kind(cloud: CloudConfig) -> KubeKind:
    return KubeKind("batch/v1", "Job", cloud.eks.namespace)


def remove_job(cluster: KubeCluster, cloud: CloudConfig, job: EksJob) -> None:
    """Delete a job and all objects of its launch; those that are gone do not matter."""
    namespace = cloud.eks.namespace
    kinds = [KubeKind("v1", "ConfigMap", namespace)]
    if job.kind == "TrainJob":
        kinds = [KubeKind(TRAINER, "TrainJob", namespace), KubeKind(TRAINER, "TrainingRuntime", namespace), *kinds]
    else:
        kinds = [job_kind(cloud), KubeKind("v1", "Service", namespace), *kinds]
    for kind in kinds:
        cluster.delete(kind, job.name)


def remove_created(cluster: KubeCluster, created: Sequence[KubeObject], unsure: KubeObject | None) -> None:
    """Delete what a launch has created, the job first. `unsure` goes only if it is this launch's.

    The answer to its creation was lost, or an object of its name was there: perhaps the job of another project.
    """
    if unsure is not None and _is_there(cluster, unsure):
        cluster.delete(KubeKind.of(unsure), unsure["metadata"]["name"])
    for each in reversed(created):
        cluster.delete(KubeKind.of(each), each["metadata"]["name"])


def _is_there(cluster: KubeCluster, item: KubeObject) -> bool:
    """Return whether the cluster has this very object: project, run, launch, owner and kill time are the same."""
    found = cluster.get(KubeKind.of(item), item["metadata"]["name"])
    if found is None:
        return False
    return all(
        item["metadata"][part].items() <= found["metadata"].get(part, {}).items() for part in ("labels", "annotations")
    )


def _job(found: KubeObject, pods: Sequence[KubeObject]) -> EksJob:
    metadata = found["metadata"]
    status = found.get("status", {})
    launch = metadata["labels"]["skytrain/launch"]
    own = tuple(
        sorted((_pod(pod) for pod in pods if pod["metadata"]["labels"].get("skytrain/launch") == launch),
               key=lambda pod: (pod.index, pod.name))
    )  # fmt: skip
    conditions = {each["type"]: each for each in status.get("conditions", []) if each.get("status") == "True"}
    spec = found["spec"]
    nodes = spec.get("completions") or spec.get("trainer", {}).get("numNodes") or 1
    state, reason = _state(found, conditions, own)
    # Kubernetes does not count what the failure policy ignores: pods that were drained, preempted or interrupted.
    failed = max(status.get("failed", 0), sum(pod.phase == "Failed" for pod in own))
    return EksJob(
        name=metadata["name"], kind=found["kind"], state=state, nodes=nodes, failed_pods=failed, reason=reason, pods=own
    )


def _state(found: KubeObject, conditions: dict[str, Any], pods: Sequence[EksPod]) -> tuple[str, str | None]:
    if "deletionTimestamp" in found["metadata"]:
        return "deleting", None
    for name in ENDED:
        if name in conditions:
            return name.lower(), _said(conditions[name]) if name == "Failed" else None
    if "FailureTarget" in conditions:
        return "failing", _said(conditions["FailureTarget"])
    if "Suspended" in conditions or found["spec"].get("suspend"):
        return "suspended", _said(conditions.get("Suspended", {}))
    if any(pod.phase == "Running" for pod in pods):
        return "running", None
    return "waiting", next((pod.reason for pod in pods if pod.phase == "Pending" and pod.reason), None)


def _said(condition: dict[str, Any]) -> str | None:
    parts = [condition.get("reason", ""), condition.get("message", "")]
    return ": ".join(part for part in parts if part)[:MESSAGE_LENGTH] or None


def _pod(found: KubeObject) -> EksPod:
    metadata = found["metadata"]
    status = found.get("status", {})
    index = metadata.get("annotations", {}).get("batch.kubernetes.io/job-completion-index", "-")
    phase = status.get("phase", "Pending")
    reason = pod_reason(found)
    if phase == "Running" and "deletionTimestamp" in metadata:
        reason = "it is being ended"
    return EksPod(name=metadata["name"], index=index, phase=phase, node=found["spec"].get("nodeName"), reason=reason)


def pod_reason(found: KubeObject) -> str | None:
    """Return why any pod waits, or how it ended; None while it runs well."""
    status = found.get("status", {})
    return _reason(status.get("phase", "Pending"), found["spec"], status)


def _reason(phase: str, spec: KubeObject, status: KubeObject) -> str | None:
    """Why the pod waits, or how it ended."""
    containers = [*status.get("initContainerStatuses", []), *status.get("containerStatuses", [])]
    states = [each.get("state", {}) for each in containers]
    if phase == "Pending":
        for waiting in (state["waiting"] for state in states if "waiting" in state):
            word = PENDING_WORDS.get(waiting.get("reason", ""))
            if word is not None:
                image = spec["containers"][0].get("image", "")
                return f"{word} ({waiting['reason']}): {waiting.get('message') or image}"[:MESSAGE_LENGTH]
        for each in status.get("conditions", []):
            if each.get("type") == "PodScheduled" and each.get("status") == "False":
                return f"no node takes it: {each.get('message', each.get('reason', ''))}"[:MESSAGE_LENGTH]
        return next((state["waiting"].get("reason") for state in states if "waiting" in state), None)
    for ended in (state["terminated"] for state in states if "terminated" in state):
        if ended.get("exitCode") == 0:
            return None
        last = _last_lines(ended.get("message", ""))
        return f"exit code {ended.get('exitCode')} ({ended.get('reason', 'Error')})" + (f": {last}" if last else "")
    return status.get("reason") if phase == "Failed" else None


def _last_lines(text: str) -> str:
    """Return the error among the last lines of a pod, with its remedy, in one line."""
    lines = text.strip().splitlines()
    begins = [number for number, line in enumerate(lines) if line.startswith("error: ")]
    chosen = lines[begins[-1] :] if begins else lines[-1:]
    return " ".join(" ".join(chosen).split())[:MESSAGE_LENGTH]
