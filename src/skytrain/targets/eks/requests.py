"""The Kubernetes objects that train a plan: an Indexed Job (or a TrainJob of Kubeflow) whose pods run the node agent."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from ...config import EXIT_CODES, INTERRUPTED, UNCOMMITTED, CloudConfig, EksConfig, SkytrainError, format_seconds
from ...planning import PlannedOffer, load_catalog, timestamp
from .kube import KubeObject

CONTAINERS = {"job": "agent", "trainjob": "node"}  # the container; Kubeflow looks for its own by this name
METRICS_PORT = 9464
USER = 1000  # of the image
POD_CONFIG_FOLDER = "/etc/skytrain/config"
WORK = "/scratch"
TEMPORARY = "/tmp"  # noqa: S108 - of a pod
SHARED_MEMORY = "/dev/shm"  # noqa: S108 - of a pod
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
        "PYTHONSAFEPATH": "1",  # classes come from the image, not from the working folder
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
    resources = {
        "cpu": str(size.cpus), "memory": f"{size.memory_gib}Gi", "ephemeral-storage": f"{size.disk_gib}Gi",
    }  # fmt: skip
    if size.gpus:
        resources["nvidia.com/gpu"] = str(size.gpus)
    if size.efa:
        resources |= {"vpc.amazonaws.com/efa": str(size.efa), "hugepages-2Mi": HUGE_PAGES}
    return resources


def _claims(job: EksJobSpec) -> dict[str, str]:
    return {f"claim-{name}": path for name, path in job.eks.volumes.items()}


def _volumes(job: EksJobSpec) -> list[KubeObject]:

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
    """Ask for machines of the plan's market; those of one run in one zone, which is nearer and costs no traffic."""
    size = job.size
    affinity = dict[str, Any]()
    if size.market:
        karpenter, managed = MARKETS[size.market]
        terms = [
            {"matchExpressions": [{"key": key, "operator": "In", "values": [value]}]}
            for key, value in (("karpenter.sh/capacity-type", karpenter), ("eks.amazonaws.com/capacityType", managed))
        ]
        affinity["nodeAffinity"] = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}
    if size.nodes > 1 and size.instance_type:
        same = {name: job.labels[name] for name in ("skytrain/run", "skytrain/launch")}
        together = {"labelSelector": {"matchLabels": same}, "topologyKey": "topology.kubernetes.io/zone"}
        affinity["podAffinity"] = {"requiredDuringSchedulingIgnoredDuringExecution": [together]}
    return affinity


def _tolerations(size: PodSize) -> list[KubeObject]:
    keys = [*(["nvidia.com/gpu"] if size.gpus else []), *(["vpc.amazonaws.com/efa"] if size.efa else []),
            *(["skytrain/spot"] if size.market == "spot" else [])]  # fmt: skip
    return [{"key": key, "operator": "Exists", "effect": "NoSchedule"} for key in keys]


NAME_LENGTH = 52  # a pod's host name is the job's name and its index, of 63 letters
LABEL_LENGTH = 63
IMAGE = re.compile(r"[a-z0-9.-]+(:\d+)?/[a-z0-9._/-]+(:[\w.-]+)?@sha256:[0-9a-f]{64}")
DNS_NAME = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?")
NUMBER = re.compile(r"[-+.\d][\d._eE+-]*")  # kubectl takes 1e5 and 00008 for numbers, PyYAML does not
KEPT_SECONDS = 7 * 86400  # for which Kubernetes keeps a job that has ended
FAILURES_PER_NODE = 6  # pods that may fail, disruptions and interruptions apart
TRAINER = "trainer.kubeflow.org/v1alpha1"
# Another pod does not mend these: a wrong setting, the budget, a newer attempt, damage, credentials.
FINAL_CODES = sorted(EXIT_CODES[cause] for cause in ("usage", "budget", "superseded", "damaged", "credentials"))
INTERRUPTED_CODES = sorted(EXIT_CODES[cause] for cause in (INTERRUPTED, UNCOMMITTED))


@dataclass(frozen=True)
class EksJobSpec:
    """All that the objects are made of."""

    run: str
    launch: str
    project: str
    owner: str
    size: PodSize
    cloud: CloudConfig
    run_seconds: float
    launched_at: datetime
    command: tuple[str, ...]  # of skytrain: node ...
    files: dict[str, str]  # the user's own groups of settings, by path

    @property
    def name(self) -> str:
        return kube_job_name(self.run, self.launch)

    @property
    def eks(self) -> EksConfig:
        return self.cloud.eks

    @property
    def limit_seconds(self) -> int:
        """After which Kubernetes ends the job, whatever happens; waiting for nodes counts."""
        return int(self.run_seconds + self.eks.wait)

    @property
    def kill_at(self) -> datetime:
        return self.launched_at + timedelta(seconds=self.limit_seconds)

    @property
    def labels(self) -> dict[str, str]:
        return {**run_labels(self.project, self.run), "skytrain/launch": self.launch}

    def objects(self) -> list[KubeObject]:
        """Return the objects in the order in which they are created; the last one owns the others."""
        check_eks_settings(self.eks)
        about = {"karpenter.sh/do-not-disrupt": "true", "skytrain/run": self.run}
        template = {"metadata": {"labels": self.labels, "annotations": about}, "spec": pod_spec(self)}
        configuration = {"data": self._data(), "immutable": True}
        objects = [{**self._head("v1", "ConfigMap"), **configuration}]
        if self.cloud.eks.job_kind == "trainjob":
            return [*objects, self._runtime(template), self._train_job()]
        return [*objects, self._service(), {**self._head("batch/v1", "Job"), "spec": self._job(template)}]

    def _data(self) -> dict[str, str]:
        return {file_key(path): text for path, text in sorted(self.files.items())}

    def _head(self, version: str, kind: str) -> KubeObject:
        about = {
            "skytrain/run": self.run, "skytrain/owner": self.owner, "skytrain/expires-at": timestamp(self.kill_at),
        }  # fmt: skip
        metadata = {
            "name": self.name, "namespace": self.eks.namespace, "labels": self.labels, "annotations": about,
        }  # fmt: skip
        return {"apiVersion": version, "kind": kind, "metadata": metadata}

    def _service(self) -> KubeObject:
        """Return a service without an address: it gives each pod a name, and Prometheus its targets."""
        spec = {
            "clusterIP": "None",
            "publishNotReadyAddresses": True,
            "selector": {"skytrain/launch": self.launch, "skytrain/run": self.labels["skytrain/run"]},
            "ports": [{"name": "metrics", "port": METRICS_PORT, "targetPort": "metrics", "protocol": "TCP"}],
        }
        return {**self._head("v1", "Service"), "spec": spec}

    def _job(self, template: KubeObject) -> KubeObject:
        nodes = self.size.nodes
        return {
            "completionMode": "Indexed",
            "completions": nodes,
            "parallelism": nodes,
            "activeDeadlineSeconds": self.limit_seconds,
            "ttlSecondsAfterFinished": KEPT_SECONDS,
            "backoffLimit": FAILURES_PER_NODE * nodes,
            # A new pod starts when the old one has ended: two never act for the same index.
            "podReplacementPolicy": "Failed",
            "podFailurePolicy": {
                "rules": [
                    {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]},
                    self._codes("Ignore", INTERRUPTED_CODES),
                    self._codes("FailJob", FINAL_CODES),
                ]
            },
            "template": template,
        }

    def _codes(self, action: str, codes: list[int]) -> KubeObject:
        container = CONTAINERS[self.cloud.eks.job_kind]
        return {"action": action, "onExitCodes": {"containerName": container, "operator": "In", "values": codes}}

    def _runtime(self, template: KubeObject) -> KubeObject:
        """Return a runtime for this run only: the job template of a JobSet is the only place for a pod failure policy.

        It has no `torch` policy: the node agent, and not the controller, says who takes part.
        """
        job = {"name": "node", "template": {"metadata": {"labels": {ANCESTOR: "trainer"}}, "spec": self._job(template)}}
        spec = {
            "mlPolicy": {"numNodes": self.size.nodes},
            "template": {
                "spec": {
                    "network": {"enableDNSHostnames": True, "publishNotReadyAddresses": True},
                    "failurePolicy": {"maxRestarts": 0},
                    "replicatedJobs": [job],
                }
            },
        }
        return {**self._head(TRAINER, "TrainingRuntime"), "spec": spec}

    def _train_job(self) -> KubeObject:
        spec = {
            "runtimeRef": {"apiGroup": "trainer.kubeflow.org", "kind": "TrainingRuntime", "name": self.name},
            "trainer": {"numNodes": self.size.nodes, "image": self.eks.image},
            "activeDeadlineSeconds": self.limit_seconds,
        }
        return {**self._head(TRAINER, "TrainJob"), "spec": spec}


ANCESTOR = "trainer.kubeflow.org/trainjob-ancestor-step"  # by which the controller finds the trainer's pods


def run_labels(project: str, run: str) -> dict[str, str]:
    """Return the labels by which the objects of a run are found."""
    return {
        "app.kubernetes.io/name": "skytrain",
        "app.kubernetes.io/component": "training",
        "app.kubernetes.io/managed-by": "skytrain",
        "skytrain/project": dns_name(project, LABEL_LENGTH),
        "skytrain/run": dns_name(run, LABEL_LENGTH),
    }


def kube_job_name(run: str, launch: str) -> str:
    """Return the name of a launch's objects. Services and TrainJobs want a letter first."""
    most = NAME_LENGTH - len(launch) - 1
    name = dns_name(run, most)
    if name[0].isdigit():
        name = f"run-{dns_name(run + '/', most - 4)}"  # with its hash: a run may be called run-1 as well as 1
    return f"{name}-{launch}"


def dns_name(text: str, most: int) -> str:
    """Return the text as a DNS label. A long or odd one is followed by its hash, so that no two become the same."""
    plain = re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")
    if plain == text and len(plain) <= most:
        return plain
    return f"{plain[: most - 11].strip('-') or 'run'}-{hashlib.sha256(text.encode()).hexdigest()[:10]}"


def file_key(path: str) -> str:
    """Return the key of a file in a ConfigMap, which may have no slash."""
    return path.replace("/", "__")


def check_eks_settings(eks: EksConfig) -> None:
    """Raise SkytrainError for settings that no cluster would take."""
    if eks.image is None:
        raise SkytrainError(
            "cloud.eks.image is not set\n"
            "  the image with Skytrain, by digest: cloud.eks.image=REGISTRY/NAME@sha256:...; docs/image.md makes one"
        )
    if not IMAGE.fullmatch(eks.image):
        raise SkytrainError(
            f"cloud.eks.image={eks.image}: not an image by digest\n"
            "  REGISTRY/NAME@sha256:...; a tag may be moved to another image between two pods of a run"
        )
    for name, value in (("namespace", eks.namespace), ("service_account", eks.service_account)):
        if not DNS_NAME.fullmatch(value):
            raise SkytrainError(
                f"cloud.eks.{name}={value}: not a valid Kubernetes name\n  use lowercase letters, digits and '-'"
            )


def check_grace(eks: EksConfig, stop_within: float) -> None:
    """Raise SkytrainError if Kubernetes would kill a pod that still saves."""
    if eks.grace < stop_within:
        raise SkytrainError(
            f"cloud.eks.grace={format_seconds(eks.grace)}: a save may take trainer.stop_within="
            f"{format_seconds(stop_within)}\n  raise the first or lower the second"
        )


def to_yaml(objects: list[KubeObject]) -> str:
    """Return the objects as `kubectl apply -f` reads them."""
    import yaml  # type: ignore[import-untyped]

    class Plain(yaml.SafeDumper):
        def ignore_aliases(self, data: Any) -> bool:
            return True  # labels occur several times, and a person wants to read them where they are

    def text(dumper: yaml.SafeDumper, value: str) -> Any:
        style = "|" if "\n" in value else "'" if NUMBER.fullmatch(value) else None
        return dumper.represent_scalar("tag:yaml.org,2002:str", value, style=style)

    Plain.add_representer(str, text)
    return "---\n".join(yaml.dump(each, Dumper=Plain, sort_keys=False, width=120) for each in objects)
