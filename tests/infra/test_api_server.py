"""What a real API server says of our manifests: accepted without a warning, Pod Security, quotas, policies, permissions."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.cluster import apply
from tests.support.control_plane import Answer, ControlPlane, KubeObject
from tests.support.kubernetes_manifests import Manifest, pod_templates

pytestmark = pytest.mark.slow
GOLDEN = Path(__file__).parents[1] / "cloud" / "golden"
DIGEST = f"registry.example/x@sha256:{0:064}"
TRAINING, SERVING, DEVICES = "skytrain-training", "skytrain-serving", "skytrain-devices"
OPERATOR_ACCOUNT = f"system:serviceaccount:{TRAINING}:skytrain-operator"


def test_everything_is_accepted_without_a_warning_and_twice_changes_nothing(
    plane: ControlPlane, applied: list[Manifest]
) -> None:
    told = (plane.folder / "applied.txt").read_text().splitlines()
    assert len(told) == len(applied) >= 100
    assert [line for line in told if not line.endswith(" serverside-applied")] == []
    before = _versions(plane)
    again = apply(plane, applied)
    assert again.returncode == 0 and not again.stderr
    assert _versions(plane) == before


def _versions(plane: ControlPlane) -> dict[str, str]:
    """The generation of what has one: the API server raises it when a specification changes."""
    kinds = "deployments,daemonsets,statefulsets,cronjobs,networkpolicies,nodepools,ec2nodeclasses"
    found = json.loads(plane.kubectl("get", kinds, "-A", "-o", "json").stdout)["items"]
    return {f"{each['kind']} {each['metadata']['name']}": str(each["metadata"]["generation"]) for each in found}


# Pod Security


def test_pods_of_the_manifests_and_of_every_plan_are_admitted(plane: ControlPlane, applied: list[Manifest]) -> None:
    pods = {name: (each["namespace"], each) for name, each in pod_templates(applied).items()}
    for path in sorted(GOLDEN.glob("eks-*.yaml")):
        objects = {each["kind"]: each["spec"] for each in yaml.safe_load_all(path.read_text()) if "spec" in each}
        template = objects["Job"]["template"] if "Job" in objects else _inner(objects["TrainingRuntime"])
        pods[path.stem] = (TRAINING, template)
    assert len(pods) >= 15
    for name, (namespace, template) in pods.items():
        claims = [{"name": each, "emptyDir": {}} for each in _claimed(template["spec"])]  # of a StatefulSet
        spec = {**template["spec"], "volumes": [*template["spec"].get("volumes", []), *claims]}
        answer = create_pod(plane, namespace, spec, template["metadata"]["labels"])
        assert answer.accepted, (name, answer.message)
        assert answer.warnings == [], name


def _claimed(pod: KubeObject) -> set[str]:
    """The volumes that a pod mounts and does not have: those that a StatefulSet claims for it."""
    mounted = {mount["name"] for each in pod["containers"] for mount in each.get("volumeMounts", ())}
    return mounted - {each["name"] for each in pod.get("volumes", ())}


def _inner(runtime: KubeObject) -> KubeObject:
    template: KubeObject = runtime["template"]["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]
    return template


def create_pod(
    plane: ControlPlane, namespace: str, spec: KubeObject, labels: dict[str, str] | None = None, user: str = "admin"
) -> Answer:
    """Let the API server decide on a pod, and keep nothing."""
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"generateName": "x-", "labels": labels or {}}, "spec": spec}
    query = {"dryRun": "All", "fieldValidation": "Strict"}
    return plane.request("POST", f"/api/v1/namespaces/{namespace}/pods", pod, user=user, **query)


def modest_pod(**changed: Any) -> KubeObject:
    """A pod that Pod Security `restricted` admits; `container` changes its container."""
    container = {
        "name": "x", "image": DIGEST, "resources": {"limits": {"cpu": "1", "memory": "1Gi"}},
        "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
    }  # fmt: skip
    own = changed.pop("container", {})
    security = {"runAsNonRoot": True, "runAsUser": 1000, "seccompProfile": {"type": "RuntimeDefault"}}
    return {
        "securityContext": security, "serviceAccountName": "skytrain-train", "containers": [{**container, **own}], **changed,
    }  # fmt: skip


FORBIDDEN: dict[str, dict[str, Any]] = {
    "privileged": {"container": {"securityContext": {"privileged": True}}},
    "hostNetwork": {"hostNetwork": True},
    "hostPath": {"volumes": [{"name": "root", "hostPath": {"path": "/"}}]},
    "runAsNonRoot": {"securityContext": {"runAsUser": 0, "seccompProfile": {"type": "RuntimeDefault"}}},
    "IPC_LOCK": {
        "container": {
            "securityContext": {
                "allowPrivilegeEscalation": False,
                "capabilities": {"drop": ["ALL"], "add": ["IPC_LOCK"]},
            }
        }
    },
}


@pytest.mark.parametrize("word", FORBIDDEN)
def test_pod_security_refuses_what_a_restricted_pod_may_not_have(plane: ControlPlane, word: str) -> None:
    pod = modest_pod(**copy.deepcopy(FORBIDDEN[word]))
    answer = create_pod(plane, TRAINING, pod)
    assert answer.status == 403 and 'violates PodSecurity "restricted' in answer.message and word in answer.message
    assert create_pod(plane, TRAINING, modest_pod()).accepted  # without it there is nothing to refuse
    elsewhere = {**pod, "serviceAccountName": "devices"}
    assert create_pod(plane, DEVICES, elsewhere).accepted  # an administrator's own namespace
    assert create_pod(plane, DEVICES, elsewhere, user="ada").status == 403  # where operators create nothing


# Quotas


def test_quotas_count_gpus_and_services(plane: ControlPlane) -> None:
    def gpus(number: int, namespace: str = TRAINING, account: str = "skytrain-train") -> Answer:
        limits = {"cpu": "1", "memory": "1Gi", "nvidia.com/gpu": str(number)}
        return create_pod(
            plane, namespace, modest_pod(container={"resources": {"limits": limits}}, serviceAccountName=account)
        )

    assert gpus(16).accepted
    answer = gpus(17)
    assert answer.status == 403 and "exceeded quota: limits, requested: requests.nvidia.com/gpu=17" in answer.message
    answer = gpus(17, SERVING, "skytrain-serve")
    assert answer.status == 403 and "limited: requests.nvidia.com/gpu=16" in answer.message
    port = {"type": "NodePort", "ports": [{"port": 80}]}
    service = {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "x"}, "spec": port}
    used = {"PATCH": {"status": {"used": {"services.nodeports": "1"}}}}
    if not plane.has_controllers:  # the load balancer of the model has the only one
        plane.request("PATCH", f"/api/v1/namespaces/{SERVING}/resourcequotas/limits/status", used["PATCH"])
    answer = plane.request("POST", f"/api/v1/namespaces/{SERVING}/services", service, dryRun="All")
    assert answer.status == 403 and "services.nodeports" in answer.message


# Admission policies


def test_the_expressions_of_every_policy_are_well_typed(plane: ControlPlane, applied: list[Manifest]) -> None:
    if not plane.has_controllers:
        pytest.skip("the status of a policy is written by kube-controller-manager, which is not in the folder")
    names = [each["metadata"]["name"] for each in applied if each["kind"] == "ValidatingAdmissionPolicy"]
    assert len(names) == 5
    for name in names:
        path = f"/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies/{name}"
        status = plane.wait(name, lambda path=path: plane.request("GET", path).body.get("status"), 60.0)
        assert status["observedGeneration"] >= 1 and "expressionWarnings" not in status.get("typeChecking", {}), name


def test_images_need_a_digest_in_every_kind_of_container(plane: ControlPlane) -> None:
    pod = modest_pod()
    assert create_pod(plane, TRAINING, pod).accepted
    moved = {**pod["containers"][0], "image": "registry.example/x:latest"}
    for name, wrong in {
        "containers": {**pod, "containers": [moved]},
        "initContainers": {**pod, "initContainers": [{**moved, "name": "i"}]},
    }.items():
        answer = create_pod(plane, TRAINING, wrong)
        assert answer.status == 422, name
        assert "images must be named by digest: registry.example/x:latest" in answer.message, name
    longer = {**pod["containers"][0], "image": f"{DIGEST}0"}
    assert not create_pod(plane, TRAINING, {**pod, "containers": [longer]}).accepted


def service(**spec: Any) -> KubeObject:
    ports = [{"port": 80, "protocol": "TCP"}]
    return {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "x"}, "spec": {"ports": ports, **spec}}


@pytest.mark.parametrize("user", ["ada", "admin"])
def test_services_of_training_are_headless_and_take_over_no_addresses(plane: ControlPlane, user: str) -> None:
    path = f"/api/v1/namespaces/{TRAINING}/services"

    def answer(**spec: Any) -> Answer:
        return plane.request("POST", path, service(**spec), user=user, dryRun="All")

    assert answer(clusterIP="None").accepted
    assert "have no externalIPs" in answer(clusterIP="None", externalIPs=["192.0.2.1"]).message
    for wrong in (
        {},
        {"type": "NodePort"},
        {"type": "LoadBalancer"},
        {"type": "ExternalName", "externalName": "a.example"},
    ):
        refused = answer(**wrong)
        assert refused.status == 422 and "Services of training are headless" in refused.message, wrong
    assert plane.request("POST", path, service(clusterIP="None"), user=user).accepted
    try:
        changed = plane.request("PATCH", f"{path}/x", {"spec": {"externalIPs": ["192.0.2.1"]}}, user=user, dryRun="All")
        assert changed.status == 422 and "have no externalIPs" in changed.message
    finally:
        assert plane.request("DELETE", f"{path}/x", user=user).accepted
    elsewhere = plane.request(
        "POST", f"/api/v1/namespaces/{SERVING}/services", service(externalIPs=["192.0.2.1"]), dryRun="All"
    )
    assert "have no externalIPs" in elsewhere.message


def job_as(account: str | None) -> KubeObject:
    pod = {**modest_pod(), "restartPolicy": "Never"}
    pod = {name: value for name, value in pod.items() if name != "serviceAccountName"}
    template = {"spec": {**pod, **({"serviceAccountName": account} if account else {})}}
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "x"}, "spec": {"template": template}}


@pytest.mark.parametrize("user", ["ada", OPERATOR_ACCOUNT])
def test_operators_choose_no_other_service_account_for_the_pods_of_a_job(plane: ControlPlane, user: str) -> None:
    path = f"/apis/batch/v1/namespaces/{TRAINING}/jobs"
    assert plane.request("POST", path, job_as("skytrain-train"), user=user, dryRun="All").accepted
    for account in ("skytrain-operator", "default", None):
        answer = plane.request("POST", path, job_as(account), user=user, dryRun="All")
        assert answer.status == 422 and "have the service account skytrain-train" in answer.message
    assert plane.request("POST", path, job_as("skytrain-operator"), dryRun="All").accepted  # as the CronJob does


def test_operators_choose_no_other_service_account_by_way_of_kubeflow(plane: ControlPlane) -> None:
    [_, runtime, train_job] = yaml.safe_load_all((GOLDEN / "eks-trainjob.yaml").read_text())
    place = f"/apis/trainer.kubeflow.org/v1alpha1/namespaces/{TRAINING}"

    def answer(item: KubeObject) -> Answer:
        return plane.request("POST", f"{place}/{item['kind'].lower()}s", item, user="ada", dryRun="All")

    assert answer(runtime).accepted and answer(train_job).accepted
    other = copy.deepcopy(runtime)
    _inner(other["spec"])["spec"]["serviceAccountName"] = "skytrain-operator"
    assert "have the service account skytrain-train" in answer(other).message
    pod = {"spec": {"serviceAccountName": "skytrain-operator"}}
    jobs = [{"name": "node", "template": {"spec": {"template": pod}}}]
    patch = {"manager": "ada", "trainingRuntimeSpec": {"template": {"spec": {"replicatedJobs": jobs}}}}
    other = {**train_job, "spec": {**train_job["spec"], "runtimePatches": [patch]}}
    assert "have the service account skytrain-train" in answer(other).message
    pod["spec"] = {"nodeSelector": {"zone": "a"}}
    assert answer(other).accepted
    long = copy.deepcopy(train_job)
    long["metadata"]["name"] = "1-begins-with-a-digit"
    assert answer(long).status == 422


def _first(deployment: KubeObject) -> KubeObject:
    container: KubeObject = deployment["spec"]["template"]["spec"]["containers"][0]
    return container


def _pod(deployment: KubeObject) -> KubeObject:
    pod: KubeObject = deployment["spec"]["template"]["spec"]
    return pod


ALLOWED_CHANGES: dict[str, Any] = {
    "replicas": lambda d: d["spec"].update(replicas=2),
    "resources": lambda d: [each.update({"nvidia.com/gpu": "2"}) for each in _first(d)["resources"].values()],
    "annotation": lambda d: d["spec"]["template"]["metadata"].setdefault("annotations", {}).update({"skytrain/model": "x"}),
}  # fmt: skip
FORBIDDEN_CHANGES: dict[str, Any] = {
    "image": lambda d: _first(d).update(image=DIGEST),
    "command": lambda d: _first(d).update(command=["cat", "/secrets/api-key"]),
    "args": lambda d: _first(d).update(args=["cat /secrets/api-key"]),
    "environment": lambda d: _first(d)["env"].append({"name": "LD_PRELOAD", "value": "/models/x.so"}),
    "probe": lambda d: _first(d).update(livenessProbe={"exec": {"command": ["cat", "/secrets/api-key"]}}),
    "another container": lambda d: _pod(d)["containers"].append({**_first(d), "name": "other"}),
    "init container": lambda d: _pod(d)["initContainers"].append({"name": "other", "image": DIGEST}),
    "volume": lambda d: _pod(d)["volumes"].append({"name": "x", "emptyDir": {}}),
    "account": lambda d: _pod(d).update(serviceAccountName="default", serviceAccount="default"),
    "root": lambda d: _pod(d).update(securityContext={}),
    "processes": lambda d: _pod(d).update(shareProcessNamespace=True),
}


def changed_deployment(plane: ControlPlane, change: Any, user: str) -> Answer:
    path = f"/apis/apps/v1/namespaces/{SERVING}/deployments/vllm"
    found = plane.request("GET", path).body
    change(found)
    return plane.request("PUT", path, found, user=user, dryRun="All")


@pytest.mark.parametrize("name", [*ALLOWED_CHANGES, *FORBIDDEN_CHANGES])
def test_operators_change_how_much_is_served_and_nothing_that_runs_beside_the_key(
    plane: ControlPlane, name: str
) -> None:
    change = {**ALLOWED_CHANGES, **FORBIDDEN_CHANGES}[name]
    answer = changed_deployment(plane, change, "ada")
    if name in ALLOWED_CHANGES:
        assert answer.accepted, answer.message
    else:
        assert answer.status == 422 and "skytrain-serving-pods" in answer.message, answer.body
        assert changed_deployment(plane, change, "admin").accepted  # it is the policy that refuses
