"""The jobs of runs on Kubernetes and their pods, with the reason why a pod waits or has failed in one line."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ...aws import open_session
from ...config import CloudConfig, Config, SkytrainError
from ..base import Columns, JobLog, Rows, SchedulerJob
from .kube import KubeCluster, KubeError, KubeKind, KubeObject, open_cluster
from .requests import TRAINER, run_labels

PENDING_TEXTS = {
    "ImagePullBackOff": "the image cannot be pulled",
    "ErrImagePull": "the image cannot be pulled",
    "InvalidImageName": "the image's name is wrong",
    "CreateContainerConfigError": "the container cannot be made",
}
MESSAGE_LENGTH = 300
ENDED = ("Complete", "Failed")


def jobs_in_cluster(cluster: KubeCluster, cloud: CloudConfig, run: str) -> list[SchedulerJob]:
    """Return the jobs of a run that the cluster still has, newest first."""
    labels = run_labels(str(cloud.project), run)
    selector = ",".join(f"{name}={labels[name]}" for name in ("skytrain/project", "skytrain/run"))
    items = [*cluster.items(job_kind(cloud), labelSelector=selector), *_train_jobs(cluster, cloud, selector)]
    pods = cluster.items(KubeKind("v1", "Pod", cloud.eks.namespace), labelSelector=selector) if items else []
    jobs = [_job(cluster, cloud, each, pods) for each in items]
    return sorted(jobs, key=lambda job: job.name, reverse=True)


def _train_jobs(cluster: KubeCluster, cloud: CloudConfig, selector: str) -> list[KubeObject]:
    """Return TrainJobs whatever `cloud.eks.job_kind` says now: a run may have been launched with the other kind."""
    try:
        return cluster.items(KubeKind(TRAINER, "TrainJob", cloud.eks.namespace), labelSelector=selector)
    except KubeError as error:
        if cloud.eks.job_kind != "trainjob" and error.status in (403, 404):  # a cluster without Kubeflow Trainer
            return []
        raise


def _no_pods(cluster: KubeCluster, cloud: CloudConfig, name: str) -> str | None:
    """Return why a job has no pods: a quota or an admission policy refuses them, which only an event says."""
    selector = f"involvedObject.name={name},reason=FailedCreate"
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


def remove_job(cluster: KubeCluster, cloud: CloudConfig, job: SchedulerJob) -> None:
    """Delete a job and all objects of its launch; those that are gone do not matter."""
    namespace = cloud.eks.namespace
    kinds = [KubeKind("v1", "ConfigMap", namespace)]
    if job.facts["kind"] == "TrainJob":
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
    present = cluster.get(KubeKind.of(item), item["metadata"]["name"])
    if present is None:
        return False
    return all(
        item["metadata"][part].items() <= present["metadata"].get(part, {}).items()
        for part in ("labels", "annotations")
    )


def _job(cluster: KubeCluster, cloud: CloudConfig, item: KubeObject, pods: Sequence[KubeObject]) -> SchedulerJob:
    metadata = item["metadata"]
    status = item.get("status", {})
    launch = metadata["labels"]["skytrain/launch"]
    own = [_pod(pod) for pod in pods if pod["metadata"]["labels"].get("skytrain/launch") == launch]
    own.sort(key=lambda pod: (pod["index"], pod["name"]))
    spec = item["spec"]
    nodes = spec.get("completions") or spec.get("trainer", {}).get("numNodes") or 1
    state, reason = _state(item, own)
    ended = state in ("complete", "failed")
    if not own and not ended and not reason:
        reason = _no_pods(cluster, cloud, metadata["name"])
    started = any(pod["phase"] != "Pending" for pod in own)
    facts = {
        "name": metadata["name"],
        "kind": item["kind"],  # Job, TrainJob
        "state": state,
        "nodes": nodes,
        # Kubernetes does not count what the failure policy ignores: pods that were drained, preempted or interrupted.
        "failed_pods": max(status.get("failed", 0), sum(pod["phase"] == "Failed" for pod in own)),
        "reason": reason,
        "pods": own,
    }
    return SchedulerJob(
        id=metadata["name"],
        name=metadata["name"],
        state=state,
        phase="ended" if ended else "ending" if state == "deleting" else "running" if started else "waiting",
        hosts=f"{sum(pod['phase'] == 'Running' for pod in own)} of {nodes} run",
        place=cluster.name,
        reason=reason,
        facts=facts,
    )


def _state(item: KubeObject, pods: Sequence[dict[str, Any]]) -> tuple[str, str | None]:
    """Return the state: waiting, running, failing (its pods still end), complete, failed, suspended or deleting; and why."""
    conditions = {
        each["type"]: each for each in item.get("status", {}).get("conditions", []) if each.get("status") == "True"
    }
    if "deletionTimestamp" in item["metadata"]:
        return "deleting", None
    for name in ENDED:
        if name in conditions:
            return name.lower(), _said(conditions[name]) if name == "Failed" else None
    if "FailureTarget" in conditions:
        return "failing", _said(conditions["FailureTarget"])
    if "Suspended" in conditions or item["spec"].get("suspend"):
        return "suspended", _said(conditions.get("Suspended", {}))
    if any(pod["phase"] == "Running" for pod in pods):
        return "running", None
    return "waiting", next((pod["reason"] for pod in pods if pod["phase"] == "Pending" and pod["reason"]), None)


def _said(condition: dict[str, Any]) -> str | None:
    parts = [condition.get("reason", ""), condition.get("message", "")]
    return ": ".join(part for part in parts if part)[:MESSAGE_LENGTH] or None


def _pod(item: KubeObject) -> dict[str, Any]:
    """Return a pod as `status --json` shows it, with the reason why it waits or how it ended."""
    metadata = item["metadata"]
    phase = item.get("status", {}).get("phase", "Pending")
    ending = phase == "Running" and "deletionTimestamp" in metadata
    return {
        "name": metadata["name"],
        "index": metadata.get("annotations", {}).get("batch.kubernetes.io/job-completion-index", "-"),
        "phase": phase,  # Pending, Running, Succeeded, Failed
        "node": item["spec"].get("nodeName"),
        "reason": "it is being ended" if ending else pod_reason(item),
    }


def pod_reason(item: KubeObject) -> str | None:
    """Return why any pod waits, or how it ended; None while it runs well."""
    status = item.get("status", {})
    return _reason(status.get("phase", "Pending"), item["spec"], status)


def _reason(phase: str, spec: KubeObject, status: KubeObject) -> str | None:
    """Return why the pod waits, or how it ended."""
    containers = [*status.get("initContainerStatuses", []), *status.get("containerStatuses", [])]
    states = [each.get("state", {}) for each in containers]
    if phase == "Pending":
        for waiting in (state["waiting"] for state in states if "waiting" in state):
            text = PENDING_TEXTS.get(waiting.get("reason", ""))
            if text is not None:
                image = spec["containers"][0].get("image", "")
                return f"{text} ({waiting['reason']}): {waiting.get('message') or image}"[:MESSAGE_LENGTH]
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


LOG_LINES = 200


def cluster_of(config: Config) -> KubeCluster:
    """Connect to the configuration's cluster."""
    return open_cluster(config.cloud.eks, lambda: open_session(config.cloud.region, config.cloud.account))


def cluster_overrides(config: Config) -> list[str]:
    """Return the settings by which other commands find the same cluster."""
    eks = config.cloud.eks
    named = {"cluster": eks.cluster, "kubeconfig": eks.kubeconfig, "context": eks.context}
    return ["cloud=eks", *(f"cloud.eks.{name}={value}" for name, value in named.items() if value is not None)]


def run_pods(config: Config, run: str) -> list[SchedulerJob]:
    """Return the jobs of a run that the cluster has, newest first."""
    return jobs_in_cluster(cluster_of(config), config.cloud, run)


COLUMNS: Columns = {
    "JOB": lambda job: job.name,
    "KIND": lambda job: str(job.facts["kind"]),
    "STATE": lambda job: job.state,
    "PODS": lambda job: job.hosts,
    "FAILED PODS": lambda job: str(job.facts["failed_pods"]),
    "REASON": lambda job: job.reason or "-",
}


def pod_rows(job: SchedulerJob) -> Rows:
    """Return the pods of a job as a table, header first."""
    rows: Rows = [("POD", "INDEX", "PHASE", "NODE", "REASON")]
    for pod in job.facts["pods"]:
        rows.append((pod["name"], pod["index"], pod["phase"], pod["node"] or "-", pod["reason"] or "-"))
    return rows


def active_eks_jobs(config: Config, run: str) -> list[SchedulerJob]:
    """Return the jobs of a run that `stop` deletes."""
    return [job for job in run_pods(config, run) if job.is_active]


def pod_log(config: Config, run: str, lines: int | None) -> JobLog:
    """Return the end of what the pods of a run's newest job wrote; the reason of those that wait."""
    cluster = cluster_of(config)
    jobs = jobs_in_cluster(cluster, config.cloud, run)
    if not jobs:
        raise SkytrainError(f"run {run} has neither a log in the store nor a job in cluster {cluster.name}")
    told = []
    for pod in jobs[0].facts["pods"]:
        if pod["phase"] == "Pending":
            told.append(f"[{pod['name']}] waits: {pod['reason'] or 'no reason is known yet'}")
            continue
        try:
            text = cluster.log(config.cloud.eks.namespace, pod["name"], lines or LOG_LINES)
        except KubeError as error:
            if error.status in (401, 403):
                raise
            told.append(f"[{pod['name']}] its log cannot be read; is its node gone? {error.problem}")
            continue
        told += [f"[{pod['name']}] {line}" for line in text.splitlines()]
    return JobLog(told or [f"{jobs[0].name}: {jobs[0].state}; it has no pods yet"], jobs[0].has_ended)
