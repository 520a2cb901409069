"""Serve on Kubernetes: the vLLM Deployment of infra/kubernetes gets the model, and rolls out."""

from __future__ import annotations

import json
import shlex
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from ...config import Config, SkytrainError, format_seconds
from ...planning import PlanMaterial, PlanRequest, ServeWork, load_catalog, serve_plan
from ...runs import Reporter
from ...serving import ServedModel
from ...storage import open_store
from ..serving import EXPORTED, ServeJob, ServingState, model_key, upload_model
from .jobs import cluster_of, cluster_overrides, pod_reason
from .kube import KubeCluster, KubeKind, KubeObject
from .requests import to_yaml

if TYPE_CHECKING:
    from ...export import Dtype

NAMESPACE = "skytrain-serving"
NAME = "vllm"
DEPLOYMENT, POD = KubeKind("apps/v1", "Deployment", NAMESPACE), KubeKind("v1", "Pod", NAMESPACE)
CONFIG_MAP = KubeKind("v1", "ConfigMap", NAMESPACE)
CONFIG_NAME = "vllm-model"
SELECTOR = "app.kubernetes.io/name=skytrain,app.kubernetes.io/component=serving"
GPU = "nvidia.com/gpu"
POLL_SECONDS = 5.0


class EksTarget:
    """The cluster of cloud=eks."""

    name = "eks"
    reads = ()
    cloud = "eks"

    def check(self, job: ServeJob) -> Dtype:
        if job.config.cloud.target != "eks":
            raise SkytrainError("--target eks needs a cluster\n  add cloud=eks cloud.eks.cluster=NAME")
        if not job.config.store.root.startswith("s3://"):
            raise SkytrainError(
                f"store.root={job.config.store.root}: pods fetch the model from a bucket\n  cloud=eks takes the account's"
            )
        if not job.request.dry_run:
            _deployment(cluster_of(job.config))
        return EXPORTED[job.config.serve.dtype or "bfloat16"]

    def serve(self, job: ServeJob, model: ServedModel, reporter: Reporter) -> int:
        store = open_store(job.config.store)
        key = model_key(model.name, model.sha256)
        data = model_settings(job.config, model, store.url(key))
        if job.request.dry_run:
            print(json.dumps(_preview(data, model.sha256), indent=1))  # noqa: T201
            if job.config.cloud.region is not None:
                reporter.note(_bill(job, model))
            return 0
        cluster = cluster_of(job.config)
        upload_model(store, model, key, reporter)
        deploy(cluster, data, model.sha256)
        wait_until_ready(cluster, job.config.serve.start, reporter)
        reporter.note(
            f"serving {model.name}; inside the cluster: https://{NAME}.{NAMESPACE}/v1; from here:\n"
            f"  kubectl -n {NAMESPACE} port-forward service/{NAME} 8000:443\n"
            f"  skytrain chat --url https://localhost:8000 --ca CERTIFICATE, which the Secret vllm-tls has as tls.crt\n"
            f"  the API key is in the Secret vllm-api-key; end it: skytrain stop {NAME} {shlex.join(cluster_overrides(job.config))}"
        )
        return 0


def _preview(data: dict[str, str], sha256: str) -> list[dict[str, Any]]:
    """Return the requests that `deploy` makes of a cluster that serves nothing yet, without what its manifests have."""
    spec = {"template": {"spec": {"containers": [{"name": NAME, "resources": {"requests": {}, "limits": {}}}]}}}
    return [
        {"patch": f"{NAMESPACE}/{name}", "kind": kind.kind, "body": body}
        for kind, name, body in _patches({"spec": spec}, data, sha256)
    ]


def _bill(job: ServeJob, model: ServedModel) -> str:
    """Return what the node of a pod costs: the cheapest that has its GPUs and room for the model. It is on demand."""
    config = job.config
    work = ServeWork(
        shape=model.shape(config.serve.dtype or "bfloat16"),
        folder=model.name,
        gpu_memory=config.serve.gpu_memory,
        max_length=config.serve.max_length,
        gpus=config.serve.gpus or 1,
        hours=1.0,
        families=tuple(config.cloud.eks.instance_families or ()),
    )
    material = PlanMaterial(
        values=job.composed.values,
        overrides=job.composed.overrides,
        request=PlanRequest(region=config.cloud.region, market="on-demand"),
        catalog=load_catalog(),
        now=datetime.now(UTC),
    )
    try:
        plan = serve_plan(work, material)
    except SkytrainError as error:  # prices of the region are not known, or no node has room
        return str(error)
    offer = plan.choice
    usd = plan.usd_per_hour
    return (
        f"each pod: {work.gpus} x {offer.gpu}; a node such as {offer.instance_type} is ${usd:.2f} an hour, ${usd * 730:,.0f} "
        f"a month, until: skytrain stop {NAME} {shlex.join(cluster_overrides(config))}\n"
        "  the cluster itself costs more: skytrain plan cloud=eks"
    )


def model_settings(config: Config, model: ServedModel, source: str) -> dict[str, str]:
    """Return what the pods read about the model, from their ConfigMap."""
    longest = config.serve.max_length or model.shape(config.serve.dtype or "bfloat16").max_length
    return {
        "MODEL_SOURCE": source,
        "MODEL_NAME": model.name,
        "MAX_MODEL_LEN": str(longest),
        "TENSOR_PARALLEL": str(config.serve.gpus or 1),
    }


def deploy(cluster: KubeCluster, data: dict[str, str], sha256: str) -> None:
    """Name the model, and start pods with it; pods of the model before it stay until these answer."""
    for kind, name, body in _patches(_deployment(cluster), data, sha256):
        cluster.patch(kind, name, body)


def _patches(
    deployment: dict[str, Any], data: dict[str, str], sha256: str
) -> list[tuple[KubeKind, str, dict[str, Any]]]:
    """Return the requests that give the pods of a deployment this model: kind, name and body of each."""
    containers = deployment["spec"]["template"]["spec"]["containers"]
    for each in containers:
        if each["name"] != NAME:
            continue  # the proxy needs no GPU
        for kind in ("requests", "limits"):
            each["resources"][kind][GPU] = data["TENSOR_PARALLEL"]
    # Pods read the ConfigMap when they start: annotations that are new with the model make new pods.
    annotations = {"skytrain/model": sha256, "skytrain/settings": ",".join(data.values())}
    template = {"metadata": {"annotations": annotations}, "spec": {"containers": containers}}
    replicas = max(1, deployment["spec"].get("replicas", 0))
    return [
        (CONFIG_MAP, CONFIG_NAME, {"data": data}),
        (DEPLOYMENT, NAME, {"spec": {"replicas": replicas, "template": template}}),
    ]


def wait_until_ready(
    cluster: KubeCluster, limit: float, reporter: Reporter, wait: Callable[[float], None] = time.sleep
) -> None:
    """Wait until all pods have the new model; a reason why they wait is told once. Raises SkytrainError at the limit."""
    began = time.monotonic()
    told = ""
    while True:
        deployment = _deployment(cluster)
        status = deployment.get("status", {})
        wanted = deployment["spec"]["replicas"]
        seen = status.get("observedGeneration", 0) >= deployment["metadata"].get("generation", 0)
        if seen and status.get("updatedReplicas", 0) == status.get("availableReplicas", 0) == wanted:
            return
        seconds = time.monotonic() - began
        reason = _reason(cluster)
        if reason and reason != told:
            reporter.note(f"the pods wait: {reason}")
            told = reason
        if seconds > limit:
            raise SkytrainError(
                f"the model does not answer after {format_seconds(round(limit))}: {reason or 'its pods still start'}\n"
                f"  kubectl -n {NAMESPACE} logs deployment/{NAME} --all-containers; serve.start=TIME waits longer"
            )
        reporter.progress("start", min(seconds, limit), limit, f"{format_seconds(round(seconds))} of {NAME}'s start")
        wait(POLL_SECONDS)


def serving_state(config: Config) -> ServingState:
    """Return what the cluster serves."""
    cluster = cluster_of(config)
    deployment = _deployment(cluster)
    data = (cluster.get(CONFIG_MAP, CONFIG_NAME) or {}).get("data", {})
    wanted = deployment["spec"].get("replicas", 0)
    ready = deployment.get("status", {}).get("availableReplicas", 0)
    reason = _reason(cluster) if wanted > ready else None
    return ServingState(
        model=data.get("MODEL_NAME", ""), source=data.get("MODEL_SOURCE", ""), wanted=wanted, ready=ready, reason=reason
    )


def stop_serving(config: Config) -> bool:
    """End all pods, which gives back their GPUs; return False if there were none."""
    cluster = cluster_of(config)
    if not _deployment(cluster)["spec"].get("replicas", 0):
        return False
    cluster.patch(DEPLOYMENT, NAME, {"spec": {"replicas": 0}})
    return True


def keep_served(manifests: str, cluster: KubeCluster) -> str:
    """Return rendered manifests in which the model, its GPUs and the replicas are those that the cluster has.

    `serve` and the autoscaler have set them. Server-side apply refuses an object that differs there, and would end the
    model if it were forced.
    """
    import yaml  # type: ignore[import-untyped]

    live = cluster.get(DEPLOYMENT, NAME)
    data = (cluster.get(CONFIG_MAP, CONFIG_NAME) or {}).get("data", {})
    objects: list[KubeObject] = list(yaml.safe_load_all(manifests))
    for each in objects:
        what = each["kind"], each["metadata"].get("namespace"), each["metadata"]["name"]
        if what == ("ConfigMap", NAMESPACE, CONFIG_NAME):
            each["data"] |= {key: data[key] for key in each["data"] if key in data}
        elif what == ("Deployment", NAMESPACE, NAME) and live is not None:
            each["spec"]["replicas"] = live["spec"]["replicas"]
            theirs = {one["name"]: one for one in live["spec"]["template"]["spec"]["containers"]}
            for container in each["spec"]["template"]["spec"]["containers"]:
                for kind, amounts in theirs.get(container["name"], {}).get("resources", {}).items():
                    if GPU in amounts:
                        container["resources"][kind][GPU] = amounts[GPU]
    return to_yaml(objects)


def _deployment(cluster: KubeCluster) -> KubeObject:
    deployment = cluster.get(DEPLOYMENT, NAME)
    if deployment is None:
        raise SkytrainError(
            f"the cluster has no Deployment {NAME} in {NAMESPACE}\n  apply infra/kubernetes first: docs/eks.md"
        )
    return deployment


def _reason(cluster: KubeCluster) -> str | None:
    pods: list[dict[str, Any]] = cluster.items(POD, labelSelector=SELECTOR)
    return next((reason for pod in pods if (reason := pod_reason(pod))), None)


TARGET = EksTarget()
