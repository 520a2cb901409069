"""gc on Kubernetes: what of ours a namespace has, and the deletion of what nobody needs."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta

from ...aws import GcSelection
from ...config import Config, format_seconds
from ...runs import Reporter
from ..leftovers import Leftovers
from .jobs import cluster_of
from .kube import KubeCluster, KubeError, KubeKind, KubeObject
from .requests import TRAINER, run_labels

KINDS = (
    ("batch/v1", "Job"),
    (TRAINER, "TrainJob"),
    (TRAINER, "TrainingRuntime"),
    ("v1", "Service"),
    ("v1", "ConfigMap"),
)
JOBS = ("Job", "TrainJob")
OWNED = "app.kubernetes.io/managed-by=skytrain,app.kubernetes.io/component=training"
PROJECT = "skytrain/project"
YOUNG = timedelta(hours=1)  # a launch may be creating what has no owner yet


@dataclass(frozen=True)
class KubeLeftover:
    """One object with the decision about it."""

    kind: str
    name: str
    run: str
    age_seconds: float
    delete: bool
    why: str


def cluster_leftovers(config: Config, selection: GcSelection) -> Leftovers:
    """Return what the cluster's namespace has of Skytrain's."""
    cluster = cluster_of(config)
    namespace = config.cloud.eks.namespace
    leftovers = find_leftovers(config, cluster, selection)
    rows = leftover_rows(leftovers)

    def delete(reporter: Reporter) -> list[str]:
        delete_leftovers(config, cluster, leftovers)
        return []

    doomed = [{"delete": each.kind, "name": each.name, "namespace": namespace} for each in leftovers if each.delete]
    return Leftovers(
        rows=rows,
        nothing=f"nothing of Skytrain's in {namespace} of cluster {cluster.name}",
        facts=[asdict(each) for each in leftovers],
        requests=json.dumps(doomed, indent=1),
        count=len(doomed),
        delete=delete,
        unit="object",
        place=f" in {namespace}",
    )


def find_leftovers(config: Config, cluster: KubeCluster, selection: GcSelection) -> list[KubeLeftover]:
    """Return the project's objects in the namespace; those that a job owns go with it, and are not listed."""
    leftovers: list[KubeLeftover] = []
    selector = OWNED + (
        f",{PROJECT}={run_labels(config.cloud.project, PROJECT)[PROJECT]}" if config.cloud.project else ""
    )
    for version, kind in KINDS:
        try:
            items = cluster.items(KubeKind(version, kind, config.cloud.eks.namespace), labelSelector=selector)
        except KubeError as error:
            if version == TRAINER and error.status == 404:  # Kubeflow Trainer is not installed
                continue
            raise
        leftovers += [
            _judged(kind, item, selection) for item in items if not item["metadata"].get("ownerReferences")
        ]  # fmt: skip
    return leftovers


def delete_leftovers(config: Config, cluster: KubeCluster, leftovers: Sequence[KubeLeftover]) -> None:
    """Delete what is marked."""
    versions = {kind: version for version, kind in KINDS}
    for each in leftovers:
        if each.delete:
            cluster.delete(KubeKind(versions[each.kind], each.kind, config.cloud.eks.namespace), each.name)


def leftover_rows(leftovers: Sequence[KubeLeftover]) -> list[tuple[str, ...]]:
    """Return objects as a table, header first."""
    rows: list[tuple[str, ...]] = [("KIND", "NAME", "RUN", "AGE", "", "WHY")]
    for each in leftovers:
        verdict = "delete" if each.delete else "keep"
        rows.append((each.kind, each.name, each.run, format_seconds(round(each.age_seconds)), verdict, each.why))
    return rows


def _judged(kind: str, item: KubeObject, selection: GcSelection) -> KubeLeftover:
    metadata = item["metadata"]
    now = datetime.now(UTC)
    about = metadata.get("annotations", {})
    run = about.get("skytrain/run", "-")
    expires = about.get("skytrain/expires-at")
    age = now - datetime.fromisoformat(metadata["creationTimestamp"])
    delete, why = _verdict(kind, item, age, expires is not None and datetime.fromisoformat(expires) < now)
    if selection.run is not None:
        delete = run == selection.run
        why = f"--run {selection.run}" if run == selection.run else "of another run"
    elif selection.expired and why != "past its kill time":
        delete = False
        why = "not past its kill time"
    return KubeLeftover(
        kind=kind, name=metadata["name"], run=run, age_seconds=age.total_seconds(), delete=delete, why=why
    )


def _verdict(kind: str, item: KubeObject, age: timedelta, expired: bool) -> tuple[bool, str]:
    if expired:
        return True, "past its kill time"
    ended = [
        each["type"].lower()
        for each in item.get("status", {}).get("conditions", [])
        if each["type"] in ("Complete", "Failed") and each["status"] == "True"
    ]
    if ended:
        return True, f"its job is {ended[0]}"
    if kind in JOBS:
        return False, "its job is active"
    return (True, "no job owns it") if age > YOUNG else (False, "a launch may be creating it")
