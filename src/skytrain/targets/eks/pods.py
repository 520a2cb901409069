"""The pods of a run: resources, nodes, volumes, and the security settings that Pod Security `restricted` demands."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ...planning import PlannedOffer, load_catalog
from .kube import KubeObject

if TYPE_CHECKING:
    from .requests import EksJobSpec

CONTAINERS = {"job": "agent", "trainjob": "node"}  # the container; Kubeflow looks for its own by this name
METRICS_PORT = 9464
USER = 1000  # of the image
POD_CONFIG_FOLDER = "/etc/skytrain/config"
WORK = "/scratch"
TEMPORARY = "/tmp"
SHARED_MEMORY = "/dev/shm"
# of a machine; the rest is for its daemons and Kubernetes itself
CPU_SHARE = 0.9
MEMORY_SHARE = 0.85
SHM_SHARE = 0.25  # of a pod's memory, for the workers of NCCL and of the loader
HUGE_PAGES = "5120Mi"  # EFA's provider takes them; the EKS images reserve 5128 pages of 2 MiB
SMOKE_GIB_PER_CPU = 2
SMOKE_DISK_GIB = 10
DOWNWARD = {"POD_NAME": "metadata.name", "POD_IP": "status.podIP", "NODE_NAME": "spec.nodeName"}
MARKETS = {"spot": ("spot", "SPOT"), "on-demand": ("on-demand", "ON_DEMAND")}  # as Karpenter and EKS name them


@dataclass(frozen=True)
class PodSize:
    """What each pod of a run asks for. Without a machine type any node will do: a smoke test on CPUs."""

    nodes: int
    cpus: int
    memory_gib: int
    disk_gib: int
    gpus: int = 0
    efa: int = 0
    instance_type: str | None = None
    market: str | None = None


def offer_size(offer: PlannedOffer) -> PodSize:
    """Return the pods of a plan's machines: one pod takes a whole machine."""
    catalog = load_catalog()
    machine: Any = next(
        each for each in (*catalog.instances, *catalog.cpu_instances) if each.type == offer.instance_type
    )
    return PodSize(
        nodes=offer.nodes,
        cpus=max(1, int(machine.vcpus * CPU_SHARE)),
        memory_gib=max(1, int(machine.memory_gib * MEMORY_SHARE)),
        disk_gib=max(1, offer.disk_gb // 2),
        gpus=offer.gpus_per_node,
        efa=offer.efa_interfaces,
        instance_type=offer.instance_type,
        market=offer.market,
    )


def smoke_size(nodes: int, cpus: int) -> PodSize:
    return PodSize(nodes, cpus, cpus * SMOKE_GIB_PER_CPU, SMOKE_DISK_GIB)


def pod_spec(job: EksJobSpec) -> KubeObject:
    eks = job.eks
    size = job.size
    spec: KubeObject = {
        "restartPolicy": "Never",  # the job replaces pods; its failure policy asks for this
        "serviceAccountName": eks.service_account,
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": int(eks.grace),
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": USER,
            "runAsGroup": USER,
            "fsGroup": USER,
            "fsGroupChangePolicy": "OnRootMismatch",
            "seccompProfile": {"type": "RuntimeDefault"},
        },
    }
    if job.cloud.eks.job_kind == "job":
        spec["subdomain"] = job.name
    if eks.priority_class:
        spec["priorityClassName"] = eks.priority_class
    selector = {**({"node.kubernetes.io/instance-type": size.instance_type} if size.instance_type else {}),
                **eks.node_labels}  # fmt: skip
    if selector:
        spec["nodeSelector"] = selector
    if affinity := _affinity(job):
        spec["affinity"] = affinity
    if tolerations := _tolerations(size):
        spec["tolerations"] = tolerations
    spec["containers"] = [_container(job)]
    spec["volumes"] = _volumes(job)
    return spec


def _container(job: EksJobSpec) -> KubeObject:
    resources = _resources(job.size)
    mounts = {"work": WORK, "temporary": TEMPORARY, "shared-memory": SHARED_MEMORY, **_claims(job)}
    config = {"name": "config", "mountPath": POD_CONFIG_FOLDER, "readOnly": True}
    environment = {
        "AWS_REGION": job.cloud.region or "",
        # A pod reaches no metadata service: credentials come from pod identity, spot notices as SIGTERM from Karpenter.
        "AWS_EC2_METADATA_DISABLED": "true",
        **job.eks.environment,
    }
    return {
        "name": CONTAINERS[job.cloud.eks.job_kind],
        "image": job.eks.image,
        "args": list(job.command),
        "env": [
            *({"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}} for name, path in DOWNWARD.items()),
            *({"name": name, "value": value} for name, value in environment.items() if value),
        ],
        "ports": [{"name": "metrics", "containerPort": METRICS_PORT, "protocol": "TCP"}],
        "resources": {"requests": resources, "limits": resources},
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        },
        "terminationMessagePolicy": "FallbackToLogsOnError",  # the last lines of a pod that failed, for `status`
        "volumeMounts": [*({"name": name, "mountPath": path} for name, path in mounts.items()), config],
        "workingDir": WORK,
    }


def _resources(size: PodSize) -> dict[str, str]:
    found = {
        "cpu": str(size.cpus), "memory": f"{size.memory_gib}Gi", "ephemeral-storage": f"{size.disk_gib}Gi",
    }  # fmt: skip
    if size.gpus:
        found["nvidia.com/gpu"] = str(size.gpus)
    if size.efa:
        found |= {"vpc.amazonaws.com/efa": str(size.efa), "hugepages-2Mi": HUGE_PAGES}
    return found


def _claims(job: EksJobSpec) -> dict[str, str]:
    return {f"claim-{name}": path for name, path in job.eks.volumes.items()}


def _volumes(job: EksJobSpec) -> list[KubeObject]:
    from .requests import file_key

    shm = max(1, int(job.size.memory_gib * SHM_SHARE))
    items = [{"key": file_key(path), "path": path} for path in sorted(job.files)]
    return [
        {"name": "work", "emptyDir": {}},
        {"name": "temporary", "emptyDir": {}},
        {"name": "shared-memory", "emptyDir": {"medium": "Memory", "sizeLimit": f"{shm}Gi"}},
        *({"name": f"claim-{name}", "persistentVolumeClaim": {"claimName": name}} for name in job.eks.volumes),
        {"name": "config", "configMap": {"name": job.name, **({"items": items} if items else {})}},
    ]


def _affinity(job: EksJobSpec) -> KubeObject:
    """On machines of the plan's market; those of one run in one zone, which is nearer and costs no traffic."""
    size = job.size
    found = dict[str, Any]()
    if size.market:
        karpenter, managed = MARKETS[size.market]
        terms = [
            {"matchExpressions": [{"key": key, "operator": "In", "values": [value]}]}
            for key, value in (("karpenter.sh/capacity-type", karpenter), ("eks.amazonaws.com/capacityType", managed))
        ]
        found["nodeAffinity"] = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}
    if size.nodes > 1 and size.instance_type:
        same = {name: job.labels[name] for name in ("skytrain/run", "skytrain/launch")}
        together = {"labelSelector": {"matchLabels": same}, "topologyKey": "topology.kubernetes.io/zone"}
        found["podAffinity"] = {"requiredDuringSchedulingIgnoredDuringExecution": [together]}
    return found


def _tolerations(size: PodSize) -> list[KubeObject]:
    keys = [*(["nvidia.com/gpu"] if size.gpus else []), *(["vpc.amazonaws.com/efa"] if size.efa else []),
            *(["skytrain/spot"] if size.market == "spot" else [])]  # fmt: skip
    return [{"key": key, "operator": "Exists", "effect": "NoSchedule"} for key in keys]
