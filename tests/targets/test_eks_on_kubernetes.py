"""`skytrain launch cloud=eks`, status, logs, stop and gc against a real API server with its job controller."""

from __future__ import annotations

import base64
import json
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from skytrain.config import SkytrainError
from skytrain.storage import Retry
from skytrain.targets.eks.kube import KubeKind, open_cluster
from skytrain.targets.eks.launch import wait_for_pods
from skytrain.targets.eks.requests import offer_size
from tests.support.control_plane import ControlPlane
from tests.support.kubelet import INDEX, Kubelets
from tests.support.kubernetes import LocalCluster
from tests.support.settings import CLOUD_DEFAULTS

from .conftest import StubbedSession
from .plans import offer
from .test_eks import IMAGE, job_of
from .test_eks_command import JOB, NAMESPACE, TypedEks, cluster_client

pytestmark = pytest.mark.slow
NODES = ("node-0", "node-1")


class RealEks(TypedEks):
    """A user's folder whose kubeconfig leads to the control plane, as an operator."""

    def __init__(self, folder: Path, plane: ControlPlane, monkeypatch: pytest.MonkeyPatch) -> None:
        wait_seconds = Retry.wait_seconds
        super().__init__(folder, LocalCluster(), monkeypatch)
        monkeypatch.setattr(Retry, "wait_seconds", wait_seconds)
        shutil.copy(plane.kubeconfig("ada"), folder / "kubeconfig")
        self.plane, self.kubelets = plane, Kubelets(plane, NAMESPACE)

    def launched_pods(self, start: bool = True) -> list[dict[str, Any]]:
        """Launch, and let both pods come to nodes and start."""
        assert self.launch("--yes") == 0
        pods = self.kubelets.wait_for_pods(2)
        if not self.plane.has_scheduler:
            self.kubelets.bind(pods, list(NODES))
        pods = self.kubelets.wait_for_pods(2, scheduled=True)
        for pod in pods if start else ():
            self.kubelets.start(pod)
        return pods

    def replace_pod(self) -> None:
        """The job controller makes a new pod for one that has failed; a node takes it."""
        [pod] = self.kubelets.wait_for_pods(1)
        if not self.plane.has_scheduler:
            self.kubelets.bind([pod], [NODES[0]])
        [pod] = self.kubelets.wait_for_pods(1, scheduled=True)
        self.kubelets.start(pod)

    def job(self) -> dict[str, Any]:
        return self.plane.request("GET", f"/apis/batch/v1/namespaces/{NAMESPACE}/jobs/{JOB}").body

    def has_condition(self, name: str) -> bool:
        conditions = self.job().get("status", {}).get("conditions", [])
        return any(each["type"] == name and each["status"] == "True" for each in conditions)

    def job_when(self, condition: str | None) -> dict[str, Any]:
        """The job, once it has the condition."""
        if condition is not None:
            self.plane.wait(condition, lambda: self.has_condition(condition), 60.0)
        return self.job()

    def wait_until_gone(self) -> None:
        """The garbage collector removes what the job owned."""
        self.plane.wait("an empty namespace", lambda: self.kubelets.finish_deletions() or not self.objects(), 60.0)

    def objects(self) -> list[str]:
        """What of the run the namespace has."""
        found = []
        for path in ("/apis/batch/v1/{}/jobs", "/api/v1/{}/services", "/api/v1/{}/configmaps", "/api/v1/{}/pods"):
            query = {"labelSelector": "app.kubernetes.io/managed-by=skytrain"}
            items = self.plane.request("GET", path.format(f"namespaces/{NAMESPACE}"), **query).body["items"]
            found += [f"{path.rsplit('/', 1)[1]}/{each['metadata']['name']}" for each in items]
        return found


@pytest.fixture
def typed(
    tmp_path: Path, plane: ControlPlane, monkeypatch: pytest.MonkeyPatch, no_aws: pytest.MonkeyPatch
) -> Iterator[RealEks]:
    if not plane.has_controllers:
        pytest.skip(
            "KUBEBUILDER_ASSETS has no kube-controller-manager: setup-envtest brings none, add one of its version"
        )
    typed = RealEks(tmp_path, plane, monkeypatch)
    for name in NODES:
        typed.kubelets.add_node(name, "g6.12xlarge", 4)
    try:
        yield typed
    finally:
        typed.kubelets.remove_nodes()
        plane.request("DELETE", f"/apis/batch/v1/namespaces/{NAMESPACE}/jobs", propagationPolicy="Background")
        typed.wait_until_gone()


def test_a_job_from_its_launch_to_its_end(typed: RealEks, capsys: pytest.CaptureFixture[str]) -> None:
    kubelets = typed.kubelets
    _, second = typed.launched_pods()
    assert f"launched gpt2-typed: job {JOB}" in capsys.readouterr().out
    assert typed.launch("--yes") == 2  # the run has a job
    assert "may not be complete yet" in capsys.readouterr().err

    kubelets.end(second, 143, disrupted=True)  # a spot node goes
    typed.replace_pod()
    assert typed.verb("status") == 0
    said = capsys.readouterr().out
    assert JOB in said and "2 of 2 run" in said and "exit code 143 (Error)" in said

    assert typed.verb("logs") == 0
    said = capsys.readouterr().out
    assert said.count("its log cannot be read; is its node gone?") == 3

    for number in range(13):  # more than the job's limit of failures: these codes do not count
        kubelets.end(kubelets.pods("Running")[number % 2], (7, 12)[number % 2])
        typed.replace_pod()
    for pod in kubelets.pods("Running"):
        kubelets.end(pod, 0)
    assert typed.job_when("Complete")["status"]["succeeded"] == 2
    assert "failed" not in typed.job_when("Complete")["status"]
    assert typed.verb("status", "--json") == 0
    [found] = json.loads(capsys.readouterr().out)["jobs"]
    assert found["state"] == "complete" and found["failed_pods"] == 14

    assert typed.verb("gc", "--delete", "--yes") == 0
    said = capsys.readouterr().out
    assert "its job is complete" in said and "deleted 1 of 1 object" in said
    typed.wait_until_gone()


def test_a_final_exit_code_ends_the_job_with_its_reason(typed: RealEks, capsys: pytest.CaptureFixture[str]) -> None:
    first, _ = typed.launched_pods()
    capsys.readouterr()
    message = "starting\nerror: no such dataset\n  run `skytrain prepare`\n"
    typed.kubelets.end(first, 2, message)
    typed.job_when("FailureTarget")  # it fails, and has failed when its other pods have ended
    assert typed.verb("status") == 0
    said = capsys.readouterr().out
    assert "failing" in said and "it is being ended" in said and "matching FailJob rule" in said
    typed.plane.wait("the end", lambda: typed.kubelets.finish_deletions() or typed.has_condition("Failed"), 60.0)
    assert typed.verb("status") == 0
    said = capsys.readouterr().out
    assert "PodFailurePolicy" in said and "exit code 2 (Error): error: no such dataset run `skytrain prepare`" in said
    assert typed.verb("gc", "--delete", "--yes") == 0
    assert "its job is failed" in capsys.readouterr().out


def test_a_crash_counts_and_the_pod_is_replaced(typed: RealEks) -> None:
    first, _ = typed.launched_pods()
    typed.kubelets.end(first, 1)
    typed.replace_pod()  # Kubernetes waits longer after each further crash
    assert typed.job()["status"]["failed"] == 1
    [new, _] = typed.kubelets.pods("Running")
    assert new["metadata"]["annotations"][INDEX] == first["metadata"]["annotations"][INDEX]


def test_why_pods_wait_is_told_and_a_waiting_run_is_stopped(typed: RealEks, capsys: pytest.CaptureFixture[str]) -> None:
    if not typed.plane.has_scheduler:
        pytest.skip("KUBEBUILDER_ASSETS has no kube-scheduler: nobody says why a pod waits")
    typed.kubelets.remove_nodes()
    typed.kubelets.add_node("node-0", "g6.12xlarge", 4, market="on-demand")  # the plan is for spot
    assert typed.launch("--yes") == 0
    [pod, _] = typed.kubelets.wait_for_pods(2)
    typed.plane.wait("the scheduler's word", lambda: "conditions" in typed.kubelets.pods()[0]["status"], 60.0)
    capsys.readouterr()
    assert typed.verb("status") == 0
    said = capsys.readouterr().out
    assert "waiting" in said and "no node takes it: 0/1 nodes are available" in said
    assert "didn't match Pod's node affinity/selector" in said
    typed.kubelets.fail_to_pull(pod, 'Back-off pulling image "x"')
    assert typed.verb("logs") == 0
    assert 'waits: the image cannot be pulled (ImagePullBackOff): Back-off pulling image "x"' in capsys.readouterr().out
    assert typed.verb("stop", "--yes") == 0
    said = capsys.readouterr()
    assert f"job {JOB} is deleted" in said.err and "it had not begun to train" in said.out
    typed.wait_until_gone()


def test_pods_of_a_run_share_a_zone(typed: RealEks, capsys: pytest.CaptureFixture[str]) -> None:
    if not typed.plane.has_scheduler:
        pytest.skip("KUBEBUILDER_ASSETS has no kube-scheduler")
    zones = {"node-0": "us-east-2a", "node-1": "us-east-2b"}
    typed.kubelets.remove_nodes()
    for name, zone in zones.items():
        typed.kubelets.add_node(name, "g6.12xlarge", 4, zone=zone)
    assert typed.launch("--yes") == 0
    [first] = typed.kubelets.wait_for_pods(1, scheduled=True)
    typed.plane.wait("the scheduler's word", lambda: typed.verb("status") == 0 and "didn't match pod affinity rules"
                     in capsys.readouterr().out, 60.0)  # fmt: skip
    typed.kubelets.add_node("node-2", "g6.12xlarge", 4, zone=zones[first["spec"]["nodeName"]])
    nodes = {pod["spec"]["nodeName"] for pod in typed.kubelets.wait_for_pods(2, scheduled=True)}
    assert nodes == {first["spec"]["nodeName"], "node-2"}


def test_quotas_and_admission_that_refuse_pods_are_told(typed: RealEks, capsys: pytest.CaptureFixture[str]) -> None:
    assert typed.launch("--yes", "cloud.eks.priority_class=nowhere") == 0  # only its pods are refused
    typed.plane.wait("an event", lambda: typed.verb("status") == 0 and "FailedCreate" in _reasons(typed), 60.0)
    capsys.readouterr()
    assert typed.verb("status") == 0
    assert "no PriorityClass with name nowhere was found" in capsys.readouterr().out
    assert typed.verb("stop", "--yes") == 0
    typed.wait_until_gone()

    limits = {"cpu": "1", "memory": "1Gi", "nvidia.com/gpu": "12"}
    place = f"/api/v1/namespaces/{NAMESPACE}"
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "theirs"}, "spec": modest_pod(limits)}
    assert typed.plane.request("POST", f"{place}/pods", pod).accepted
    try:
        typed.plane.wait("the count", lambda: _used(typed) == "12", 60.0)
        assert typed.launch("--yes", "run=other") == 4
        said = capsys.readouterr().err
        assert "the run needs 8 GPUs; namespace skytrain-training may have 16, and 12 are used" in said
    finally:
        typed.plane.request("DELETE", f"{place}/pods/theirs", gracePeriodSeconds="0")


def _reasons(typed: RealEks) -> list[str]:
    events = typed.plane.request("GET", f"/api/v1/namespaces/{NAMESPACE}/events").body["items"]
    return [each["reason"] for each in events]


def _used(typed: RealEks) -> str:
    quota = typed.plane.request("GET", f"/api/v1/namespaces/{NAMESPACE}/resourcequotas/limits").body
    return str(quota["status"]["used"]["requests.nvidia.com/gpu"])


def modest_pod(limits: dict[str, str]) -> dict[str, Any]:
    inner = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
    container = {"name": "x", "image": IMAGE, "resources": {"limits": limits}, "securityContext": inner}
    outer = {"runAsNonRoot": True, "runAsUser": 1000, "seccompProfile": {"type": "RuntimeDefault"}}
    return {"containers": [container], "securityContext": outer, "serviceAccountName": "skytrain-train"}


@pytest.mark.parametrize(
    ("user", "code", "said"),
    [("vera", 11, "skytrain:operators"), ("eve", 11, "skytrain:operators"), ("nobody", 11, "an access entry")],
)
def test_who_is_not_an_operator_launches_nothing(
    typed: RealEks, capsys: pytest.CaptureFixture[str], user: str, code: int, said: str
) -> None:
    shutil.copy(typed.plane.kubeconfig(user), typed.folder / "kubeconfig")  # `nobody` has no valid token
    assert typed.launch("--yes") == code
    assert said in capsys.readouterr().err and typed.objects() == [] and typed.store.list("runs") == []


def test_a_namespace_that_is_missing_and_one_that_is_not_theirs(
    typed: RealEks, capsys: pytest.CaptureFixture[str]
) -> None:
    assert typed.launch("--yes", "cloud.eks.namespace=elsewhere") == 11  # Kubernetes does not tell which it is
    assert 'cannot list resource "jobs"' in capsys.readouterr().err
    shutil.copy(typed.plane.kubeconfig("admin"), typed.folder / "kubeconfig")
    assert typed.launch("--yes", "cloud.eks.namespace=elsewhere") == 3
    assert 'namespaces "elsewhere" not found' in capsys.readouterr().err
    assert typed.store.list("runs") == []


def test_a_train_job_and_its_runtime_are_kept_and_removed(typed: RealEks, capsys: pytest.CaptureFixture[str]) -> None:
    assert typed.launch("--yes", "cloud.eks.job_kind=trainjob") == 0
    place = f"/apis/trainer.kubeflow.org/v1alpha1/namespaces/{NAMESPACE}"
    job = typed.plane.request("GET", f"{place}/trainjobs/{JOB}").body
    runtime = typed.plane.request("GET", f"{place}/trainingruntimes/{JOB}").body
    assert runtime["metadata"]["ownerReferences"][0]["uid"] == job["metadata"]["uid"]
    capsys.readouterr()
    assert typed.verb("status") == 0
    assert "TrainJob" in capsys.readouterr().out
    assert typed.verb("stop", "--yes") == 0
    typed.plane.wait("no runtime", lambda: not typed.plane.request("GET", f"{place}/trainingruntimes").body["items"])
    typed.wait_until_gone()


def test_who_follows_a_launch_learns_why_it_waits_and_when_it_runs(typed: RealEks) -> None:
    pods, told = typed.launched_pods(start=False), list[str]()
    for pod in pods:
        typed.kubelets.fail_to_pull(pod, "not found")
    spec = replace(job_of(offer_size(offer("g6.12xlarge", 2))), run="gpt2-typed", project="demo")
    spec = replace(spec, cloud=replace(spec.cloud, project="demo"))
    launch: Any = SimpleNamespace(cluster=cluster_client(typed), job=spec)

    def tell(text: str) -> None:
        told.append(text)
        typed.kubelets.start(pods[0])

    wait_for_pods(launch, tell)
    assert told == [f"{pods[0]['metadata']['name']} waits: the image cannot be pulled (ImagePullBackOff): not found"]


def test_an_eks_cluster_is_reached_with_its_certificate_and_a_token(
    typed: RealEks, stubbed: StubbedSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As DescribeCluster tells it: an address, and a certificate without a file."""
    monkeypatch.setattr("skytrain.targets.eks.kube.eks_token", lambda session, cluster: "ada")
    authority = {"data": base64.b64encode(typed.plane.certificate.read_bytes()).decode()}
    found = {"status": "ACTIVE", "endpoint": typed.plane.address, "certificateAuthority": authority}
    stubbed.stub("eks").add_response("describe_cluster", {"cluster": found}, {"name": "training"})
    cluster = open_cluster(replace(CLOUD_DEFAULTS.eks, cluster="training"), lambda: stubbed.session)
    assert cluster.items(KubeKind("batch/v1", "Job", NAMESPACE)) == []

    other = base64.b64encode(certificate(typed.folder)).decode()
    found = {**found, "certificateAuthority": {"data": other}}
    stubbed.stub("eks").add_response("describe_cluster", {"cluster": found}, {"name": "training"})
    cluster = open_cluster(replace(CLOUD_DEFAULTS.eks, cluster="training"), lambda: stubbed.session)
    monkeypatch.setattr("skytrain.targets.eks.kube.OUTAGE", Retry(seconds=0.0))
    with pytest.raises(SkytrainError, match="CERTIFICATE_VERIFY_FAILED"):
        cluster.items(KubeKind("batch/v1", "Job", NAMESPACE))


def certificate(folder: Path) -> bytes:
    """Of somebody else."""
    words = "req -x509 -newkey rsa:2048 -nodes -days 1 -subj /CN=other -keyout other.key -out other.crt"
    subprocess.run(["openssl", *words.split()], cwd=folder, check=True, capture_output=True)
    return (folder / "other.crt").read_bytes()


def test_a_pod_of_the_schedule_launches_with_its_own_account(
    typed: RealEks, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The CronJob's pod has a token of skytrain-operator and no kubeconfig."""
    account = f"/api/v1/namespaces/{NAMESPACE}/serviceaccounts/skytrain-operator/token"
    request = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}}
    (typed.folder / "token").write_text(typed.plane.request("POST", account, request).body["status"]["token"])
    inside = "kubernetes.config.incluster_config."
    monkeypatch.setattr(f"{inside}SERVICE_TOKEN_FILENAME", str(typed.folder / "token"))
    monkeypatch.setattr(f"{inside}SERVICE_CERT_FILENAME", str(typed.plane.certificate))
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "127.0.0.1")
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", str(typed.plane.port))
    assert typed.launch("--yes", "cloud.eks.kubeconfig=null") == 0
    assert f"launched gpt2-typed: job {JOB}" in capsys.readouterr().out
    assert len(typed.kubelets.wait_for_pods(2)) == 2
