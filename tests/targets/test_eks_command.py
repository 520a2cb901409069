"""`skytrain launch cloud=eks`, status, logs, stop and gc as they are typed, against a Kubernetes API server on this machine."""

from __future__ import annotations

import base64
import json
import sys
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from urllib.parse import parse_qs, urlsplit

import pytest
import yaml

from skytrain.aws import AwsSession, cloud_files
from skytrain.cli import screen
from skytrain.cli.main import main
from skytrain.config import SkytrainError, compose, source_hash
from skytrain.planning import write_plan
from skytrain.planning.plan_file import PlannedCode
from skytrain.runs import launches_of
from skytrain.storage import open_store
from skytrain.targets.eks import launch as launch_eks, requests as eks_requests
from skytrain.targets.eks.kube import PLURALS, EksToken, KubeCluster, KubeError, KubeKind, eks_token, open_cluster
from skytrain.targets.eks.requests import offer_size
from tests.support.kubernetes import NAMESPACES, TOKEN, LocalCluster, local_cluster, write_kubeconfig
from tests.support.settings import CLOUD_DEFAULTS
from tests.support.token_manifests import store_manifests

from .conftest import StubbedSession, record_spend, use_store
from .plans import offer, plan
from .test_eks import IMAGE, job_of

JOB, NAMESPACE = "gpt2-typed-00001", NAMESPACES[0]
WORDS = ["run=gpt2-typed", "budget.usd=40"]
OUTPUTS = {
    "project": "demo", "account_id": "123456789012", "region": "us-east-2", "bucket": "bucket", "private_subnets": {},
    "public_subnets": {}, "node_subnets": "private", "security_group_id": "sg-1", "operator_role_arn": "arn:o",
    "node_role_arn": "arn:n", "viewer_role_arn": "arn:v", "instance_profile_name": "demo-node",
    "prepare_instance_profile_name": "demo-prepare",
}  # fmt: skip


class TypedEks:
    """A user's folder after `skytrain cloud init` and `skytrain plan`, and a cluster."""

    def __init__(self, folder: Path, cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch) -> None:
        for path, text in cloud_files(OUTPUTS, "ada").items():
            (folder / path).parent.mkdir(exist_ok=True)
            (folder / path).write_text(text)
        monkeypatch.chdir(folder)
        self.folder, self.cluster, self._monkeypatch = folder, cluster, monkeypatch
        self.store = open_store(str(folder / "objects"))
        store_manifests(self.store, compose(WORDS).config)
        use_store(monkeypatch, lambda: self.store)
        monkeypatch.setattr("skytrain.targets.eks.kube.OUTAGE.__class__.wait_seconds", lambda *_: 0.0)
        write_kubeconfig(folder / "kubeconfig", cluster)
        made = plan(offer("g6.12xlarge", 2))
        code = PlannedCode("0", source_hash())
        write_plan(replace(made, code=code, words=WORDS, config=compose(WORDS).values), folder / "plan.json")

    def __call__(self, *words: str) -> int:
        self._monkeypatch.setattr(sys, "argv", ["skytrain", *words])
        with pytest.raises(SystemExit) as ended:
            main()
        return int(ended.value.code or 0)

    def launch(self, *words: str) -> int:
        usual = ["train", "--plan", "plan.json", "cloud=eks", f"cloud.eks.image={IMAGE}"]
        return self("launch", *usual, "cloud.eks.kubeconfig=kubeconfig", *words)

    def put_job(self) -> None:
        """The objects of a launch, as another terminal would have made them."""
        made = job_of(offer_size(offer("g6.12xlarge", 2)))
        self.put(replace(made, run="gpt2-typed", project="demo", launched_at=datetime.now(UTC)).objects())

    def put(self, objects: list[dict[str, Any]]) -> None:
        for each in reversed(objects):
            owner = next(iter(self.cluster.all("jobs")), None)
            if owner is not None:
                metadata = owner["metadata"]
                each["metadata"]["ownerReferences"] = [{"name": metadata["name"], "uid": metadata["uid"]}]
            self.cluster.add(PLURALS[each["kind"]], each)

    def verb(self, verb: str, *words: str) -> int:
        return self(
            verb, *([] if verb == "gc" else ["gpt2-typed"]), "cloud=eks", "cloud.eks.kubeconfig=kubeconfig", *words
        )


@pytest.fixture(scope="module")
def server() -> Iterator[LocalCluster]:
    with local_cluster() as cluster:
        yield cluster


@pytest.fixture
def typed(
    tmp_path: Path, server: LocalCluster, monkeypatch: pytest.MonkeyPatch, no_aws: pytest.MonkeyPatch
) -> TypedEks:
    fresh = LocalCluster()
    for name in ("objects", "faults", "requests", "logs"):
        setattr(server, name, getattr(fresh, name))
    return TypedEks(tmp_path, server, monkeypatch)


def test_a_job_from_its_objects_to_its_end(typed: TypedEks, capsys: pytest.CaptureFixture[str]) -> None:
    cluster = typed.cluster
    assert typed.launch("--dry-run") == 0
    shown = list(yaml.safe_load_all(capsys.readouterr().out))
    assert [each["kind"] for each in shown] == ["ConfigMap", "Service", "Job"]
    assert cluster.requests == [] and typed.store.list("runs") == []

    assert typed.launch("--yes") == 0
    said = capsys.readouterr().out
    assert "2 x g6.12xlarge (spot)" in said and f"launched gpt2-typed: job {JOB}" in said
    assert "skytrain stop gpt2-typed cloud=eks cloud.eks.kubeconfig=kubeconfig\n" in said
    [job] = cluster.all("jobs")
    command = job["spec"]["template"]["spec"]["containers"][0]["args"]
    assert (
        command[0] == "node" and "metrics.prometheus_port=9464" in command and "budget.usd_per_hour=2.9200" in command
    )
    assert command[-6:] == ["--nodes", "2", "--processes", "4", "--launch", "00001"]
    assert all(each["metadata"]["ownerReferences"][0]["uid"] == job["metadata"]["uid"]
               for plural in ("services", "configmaps") for each in cluster.all(plural))  # fmt: skip
    [record] = launches_of(typed.store, "gpt2-typed")
    assert (record.target, record.groups[0].name, record.groups[0].nodes) == ("eks", JOB, 2)

    assert typed.launch("--yes") == 2
    assert "may not be complete yet" in capsys.readouterr().err
    assert len(cluster.all("jobs")) == 1

    cluster.run_pods()
    first, second = cluster.pods()
    cluster.end_pod(second, 7, disrupted=True)  # a spot node went away
    assert len(cluster.pods("Pending")) == 1 and len(cluster.pods()) == 3
    assert typed.verb("status") == 0
    said = capsys.readouterr().out
    assert JOB in said and "1 of 2 run" in said and "exit code 7" in said

    cluster.run_pods()
    cluster.logs = {pod["metadata"]["name"]: "line 1\nline 2\n" for pod in cluster.pods()}
    assert typed.verb("logs", "--lines", "1") == 0
    assert f"[{first['metadata']['name']}] line 2\n" in capsys.readouterr().out
    for pod in cluster.pods("Running"):
        cluster.end_pod(pod, 0)
    assert typed.verb("status", "--json") == 0
    [found] = json.loads(capsys.readouterr().out)["jobs"]
    assert found["state"] == "complete" and found["failed_pods"] == 1

    assert typed.verb("gc", "--delete", "--yes") == 0
    said = capsys.readouterr().out
    assert "its job is complete" in said and "deleted 1 of 1 object" in said
    assert not cluster.objects  # the pods, the service and the configuration went with it


def test_a_final_exit_code_ends_the_job_with_its_reason(typed: TypedEks, capsys: pytest.CaptureFixture[str]) -> None:
    typed.put_job()
    typed.cluster.run_pods()
    message = "starting\nerror: no such dataset\n  run `skytrain prepare`\n"
    first, second = typed.cluster.pods()
    typed.cluster.end_pod(first, 2, message)
    capsys.readouterr()
    assert typed.verb("status") == 0
    said = capsys.readouterr().out
    assert "failing" in said and "it is being ended" in said  # the other pod still saves
    typed.cluster.end_pod(second, 7)
    assert typed.verb("status") == 0
    said = capsys.readouterr().out
    assert "PodFailurePolicy" in said and "exit code 2 (Error): error: no such dataset run `skytrain prepare`" in said
    assert "failed" in said and len(typed.cluster.pods()) == 2


def test_a_pod_whose_node_is_gone_does_not_hide_the_logs_of_the_others(
    typed: TypedEks, capsys: pytest.CaptureFixture[str]
) -> None:
    typed.put_job()
    typed.cluster.run_pods()
    names = [pod["metadata"]["name"] for pod in typed.cluster.pods()]
    typed.cluster.logs = {names[1]: "line 1\n"}
    typed.cluster.faults.lost_logs = {names[0]}
    capsys.readouterr()
    assert typed.verb("logs") == 0
    said = capsys.readouterr().out
    assert f"[{names[0]}] its log cannot be read; is its node gone?" in said and f"[{names[1]}] line 1" in said
    assert typed.cluster.requests.count(f"GET /api/v1/namespaces/{NAMESPACE}/pods/{names[0]}/log") == 1


def test_why_pods_wait_is_told(typed: TypedEks, capsys: pytest.CaptureFixture[str]) -> None:
    typed.put_job()
    typed.cluster.hold("0/3 nodes are available: 3 Insufficient nvidia.com/gpu.")
    capsys.readouterr()
    assert typed.verb("status") == 0
    assert "no node takes it: 0/3 nodes are available: 3 Insufficient nvidia.com/gpu." in capsys.readouterr().out
    typed.cluster.fail_to_pull("Back-off pulling image: not found")
    assert typed.verb("logs") == 0
    assert "waits: the image cannot be pulled (ImagePullBackOff)" in capsys.readouterr().out


def test_a_launch_that_is_followed_tells_why_pods_wait_until_one_runs(typed: TypedEks) -> None:
    typed.put_job()
    cluster, told = typed.cluster, list[str]()
    spec = replace(job_of(offer_size(offer("g6.12xlarge", 2))), run="gpt2-typed", project="demo")
    cluster.faults.cut_watches, cluster.faults.gone_watches = 1, 1
    cluster.hold("0/3 nodes are available")
    launch: Any = SimpleNamespace(cluster=cluster_client(typed), job=spec)

    def tell(text: str) -> None:
        told.append(text)
        with cluster.lock:
            cluster.run_pods()  # a node comes

    launch_eks.wait_for_pods(launch, tell)
    assert len(told) == 1 and "waits: no node takes it: 0/3 nodes are available" in told[0]
    assert [each for each in cluster.requests if each.startswith("WATCH")] == [
        f"WATCH /api/v1/namespaces/{NAMESPACE}/pods"
    ] * 3
    assert cluster.faults.cut_watches == cluster.faults.gone_watches == 0


def test_who_watches_a_run_whose_pods_wait_needs_no_aws_account_and_learns_of_its_end(
    typed: TypedEks, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    looks = iter(range(100))

    def pause(_: float) -> None:
        if next(looks) == 3:  # more than GONE_LOOKS
            raise KeyboardInterrupt

    monkeypatch.setattr(screen, "pause", pause)
    assert typed.launch("--yes", "--no-follow") == 0
    capsys.readouterr()
    assert typed.verb("status", "--watch") == 0
    said = capsys.readouterr()
    assert "launched: no machine has started" in said.out and said.err.strip() == "gpt2-typed continues"
    job = typed.cluster.objects.pop(("jobs", NAMESPACE, JOB))  # somebody else deletes it
    assert typed.verb("status", "--watch") == 12
    assert "its job has ended; see skytrain logs gpt2-typed cloud=eks (exit code 12)" in capsys.readouterr().out
    typed.cluster.objects["jobs", NAMESPACE, JOB] = job
    assert typed.verb("stop", "--yes") == 0
    assert typed.verb("status", "--watch") == 0
    assert "gpt2-typed: stopped before it began to train (exit code 0)" in capsys.readouterr().out
    assert typed.launch("--yes", "--no-follow") == 0  # at once: a launch that was stopped is not under way


def test_a_quota_of_gpus_is_told_before_the_launch_and_if_it_stops_pods_later(
    typed: TypedEks, capsys: pytest.CaptureFixture[str]
) -> None:
    name = "requests.nvidia.com/gpu"
    metadata = {"name": "limits", "namespace": NAMESPACE}
    quota = {"metadata": metadata, "status": {"hard": {name: "16"}, "used": {name: "9"}}}
    typed.cluster.add("resourcequotas", {"apiVersion": "v1", "kind": "ResourceQuota", **quota})
    assert typed.launch("--yes") == 4
    said = capsys.readouterr().err
    assert (
        "the run needs 8 GPUs; namespace skytrain-training may have 16, and 9 are used (ResourceQuota limits)" in said
    )
    assert not typed.cluster.all("jobs") and typed.store.list("runs") == []

    typed.put_job()
    for pod in typed.cluster.pods():
        typed.cluster.delete("pods", NAMESPACE, pod["metadata"]["name"])
    message = 'Error creating: pods "gpt2" is forbidden: exceeded quota: limits'
    about = {"involvedObject": {"name": JOB}, "reason": "FailedCreate", "message": message}
    typed.cluster.add("events", {"apiVersion": "v1", "kind": "Event", "metadata": {**metadata, "name": "e1"}, **about})
    assert typed.verb("status") == 0
    assert "forbidden: exceeded quota: limits" in capsys.readouterr().out


def test_a_run_that_waits_is_stopped_by_deleting_its_job(typed: TypedEks, capsys: pytest.CaptureFixture[str]) -> None:
    typed.put_job()
    assert typed.verb("stop", "--dry-run") == 0
    assert json.loads(capsys.readouterr().out) == [{"delete": JOB, "namespace": NAMESPACE}]
    assert typed.verb("stop") == 2 and "No terminal to ask in" in capsys.readouterr().err
    assert typed.verb("stop", "--yes") == 0
    said = capsys.readouterr()
    assert f"job {JOB} is deleted" in said.err and "it had not begun to train" in said.out
    assert not typed.cluster.objects


@pytest.mark.slow
def test_a_train_job_brings_its_runtime_and_both_are_removed(
    typed: TypedEks, capsys: pytest.CaptureFixture[str]
) -> None:
    assert typed.launch("--yes", "cloud.eks.job_kind=trainjob") == 0
    cluster = typed.cluster
    assert [key[0] for key in sorted(cluster.objects)] == ["configmaps", "trainingruntimes", "trainjobs"]
    assert typed.verb("status") == 0
    assert "TrainJob" in capsys.readouterr().out
    assert typed.verb("stop", "--yes") == 0
    assert not cluster.objects


def test_a_run_that_trains_as_a_train_job_is_not_launched_again_as_a_job(
    typed: TypedEks, capsys: pytest.CaptureFixture[str]
) -> None:
    made = job_of(offer_size(offer("g6.12xlarge", 2)), "trainjob")
    made = replace(made, run="gpt2-typed", project="demo")
    typed.put(made.objects())
    assert typed.launch("--yes") == 2
    assert f"the cluster has a job {JOB}" in capsys.readouterr().err and not typed.cluster.all("jobs")
    assert typed.verb("stop", "--yes") == 0
    assert not typed.cluster.objects


def test_a_launch_that_fails_never_deletes_the_job_of_another_project(
    typed: TypedEks, capsys: pytest.CaptureFixture[str]
) -> None:
    made = job_of(offer_size(offer("g6.12xlarge", 2)), "trainjob")
    made = replace(made, run="gpt2-typed", project="other")
    typed.put(made.objects())
    theirs = dict(typed.cluster.objects)
    assert typed.launch("--yes", "cloud.eks.job_kind=trainjob") == 2
    assert "already exists" in capsys.readouterr().err
    assert typed.cluster.objects == theirs and launches_of(typed.store, "gpt2-typed")[0].failed


def test_who_follows_learns_why_a_job_has_no_pods_and_that_it_was_deleted(
    typed: TypedEks, monkeypatch: pytest.MonkeyPatch
) -> None:
    typed.put_job()
    cluster, told = typed.cluster, list[str]()
    for pod in cluster.pods():
        cluster.delete("pods", NAMESPACE, pod["metadata"]["name"])
    about = {"involvedObject": {"name": JOB}, "reason": "FailedCreate", "message": "exceeded quota: limits"}
    metadata = {"name": "e1", "namespace": NAMESPACE}
    cluster.add("events", {"apiVersion": "v1", "kind": "Event", "metadata": metadata, **about})
    spec = replace(job_of(offer_size(offer("g6.12xlarge", 2))), run="gpt2-typed", project="demo")
    spec = replace(spec, cloud=replace(spec.cloud, project="demo"))
    monkeypatch.setattr(launch_eks, "LOOK_SECONDS", 0.01)

    def tell(text: str) -> None:
        told.append(text)
        cluster.delete("jobs", NAMESPACE, JOB)  # by somebody else

    with pytest.raises(SkytrainError, match=f"job {JOB} was deleted"):
        launch_eks.wait_for_pods(cast(Any, SimpleNamespace(cluster=cluster_client(typed), job=spec)), tell)
    assert told == [f"{JOB} waits: exceeded quota: limits"]


def test_watches_that_expire_at_once_are_not_begun_again_at_once(typed: TypedEks) -> None:
    typed.put_job()
    client, waits = cluster_client(typed), list[float]()
    client._wait = waits.append
    typed.cluster.faults.gone_watches = 3
    assert next(client.watch_pods(NAMESPACE, "skytrain/run=gpt2-typed", 60.0))["kind"] == "Pod"
    assert len(waits) == 3


def test_gc_finds_the_objects_of_a_project_whose_name_is_no_label(
    typed: TypedEks, capsys: pytest.CaptureFixture[str]
) -> None:
    made = job_of(offer_size(offer("g6.12xlarge", 2)))
    typed.put(replace(made, run="gpt2-typed", project="My_Project").objects())
    assert typed.verb("gc", "cloud.project=My_Project") == 0
    assert JOB in capsys.readouterr().out


REFUSALS: dict[str, tuple[int, str, dict[str, Any]]] = {
    "no access": (11, "an access entry for its role", {"unauthorized": True}),
    "no rights": (11, "skytrain:operators", {"refused": {"jobs"}}),
    "quota": (4, "exceeded quota: gpus, requested: 8", {"quota": "gpus, requested: 8"}),
}


@pytest.mark.parametrize("name", REFUSALS)
def test_what_the_cluster_refuses_is_told_before_anything_is_created(
    name: str, typed: TypedEks, capsys: pytest.CaptureFixture[str]
) -> None:
    code, said, faults = REFUSALS[name]
    for fault, value in faults.items():
        setattr(typed.cluster.faults, fault, value)
    assert typed.launch("--yes") == code
    assert said in capsys.readouterr().err
    assert not typed.cluster.objects and typed.store.list("runs") == []


@pytest.mark.slow
def test_a_launch_that_fails_half_way_leaves_nothing(typed: TypedEks, capsys: pytest.CaptureFixture[str]) -> None:
    typed.cluster.faults.refused = {"services"}
    assert typed.launch("--yes") == 11
    assert 'cannot post resource "services"' in capsys.readouterr().err
    assert not typed.cluster.objects and launches_of(typed.store, "gpt2-typed")[0].failed

    typed.cluster.faults.refused = set()
    typed.cluster.faults.lost_answers = {"jobs"}  # it was created, and nobody knows
    assert typed.launch("--yes", "run=other") == 3
    assert "does not answer POST" in capsys.readouterr().err
    assert not typed.cluster.objects and launches_of(typed.store, "other")[0].failed


def test_bad_settings_and_missing_things_have_clear_messages(
    typed: TypedEks, capsys: pytest.CaptureFixture[str]
) -> None:
    cases: dict[str, dict[str, Any]] = {
        "cloud.eks.kubeconfig=nowhere": {"kubeconfig": "nowhere"},
        "no cluster is set": {"kubeconfig": None},
        "other": {"context": "other"},
        "are both set": {"cluster": "x"},
    }
    for said, settings in cases.items():
        with pytest.raises(SkytrainError, match=said):
            open_cluster(replace(CLOUD_DEFAULTS.eks, **{"kubeconfig": "kubeconfig", **settings}), no_session)
    assert typed.launch("--yes", "cloud.eks.namespace=elsewhere") == 3
    assert 'namespaces "elsewhere" not found' in capsys.readouterr().err
    assert not typed.cluster.objects


def test_a_job_of_the_same_name_that_the_store_does_not_know_is_not_touched(
    typed: TypedEks, capsys: pytest.CaptureFixture[str]
) -> None:
    typed.put_job()
    assert typed.launch("--yes") == 2
    assert "that this store does not know" in capsys.readouterr().err
    assert len(typed.cluster.all("jobs")) == 1


@pytest.mark.slow
def test_a_smoke_test_on_cpus_needs_no_plan(typed: TypedEks, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["train", "recipe=quickstart", "run=smoke", "cloud=eks", f"cloud.eks.image={IMAGE}", "cloud.eks.cpus=2"]
    words += ["cloud.eks.nodes=2", "cloud.eks.kubeconfig=kubeconfig", "parallel=fsdp", "trainer.batch_tokens=2048"]
    store_manifests(typed.store, compose(["recipe=quickstart"]).config)
    assert typed("launch", *words, "--yes") == 2
    assert "set trainer.device=cpu" in capsys.readouterr().err
    assert typed("launch", *words, "trainer.device=cpu", "--yes") == 0
    [job] = typed.cluster.all("jobs")
    assert job["spec"]["completions"] == 2 and "nvidia.com/gpu" not in json.dumps(job)


@pytest.mark.slow
def test_gc_keeps_what_is_active_and_deletes_what_is_expired(
    typed: TypedEks, capsys: pytest.CaptureFixture[str]
) -> None:
    typed.put_job()
    assert typed.verb("gc", "--delete", "--yes") == 0
    assert "keep" in capsys.readouterr().out and typed.cluster.all("jobs")
    [job] = typed.cluster.all("jobs")
    job["metadata"]["annotations"]["skytrain/expires-at"] = (datetime.now(UTC) - timedelta(hours=1)).isoformat()
    assert typed.verb("gc", "--delete", "--yes", "--expired") == 0
    assert "past its kill time" in capsys.readouterr().out and not typed.cluster.objects


def no_session() -> AwsSession:
    raise AssertionError("a kubeconfig needs no credentials of AWS")


def cluster_client(typed: TypedEks) -> KubeCluster:
    return open_cluster(replace(CLOUD_DEFAULTS.eks, kubeconfig="kubeconfig"), no_session)


def test_reads_outlive_cut_connections_and_expired_lists(typed: TypedEks) -> None:
    kind = KubeKind("v1", "ConfigMap", NAMESPACE)
    for number in range(5):
        item = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": f"c{number}", "namespace": NAMESPACE}}
        typed.cluster.add("configmaps", item)
    client, faults = cluster_client(typed), typed.cluster.faults
    faults.cut, faults.unavailable, faults.page, faults.expired_lists = 2, 1, 2, 1
    assert [item["metadata"]["name"] for item in client.items(kind)] == [f"c{number}" for number in range(5)]
    assert faults.cut == faults.unavailable == faults.expired_lists == 0
    with pytest.raises(KubeError, match="already exists") as refused:
        client.create({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "c1", "namespace": NAMESPACE}})
    assert refused.value.status == 409 and refused.value.exit_code == 2
    with pytest.raises(KubeError, match="dat") as refused:
        client.create(
            {"apiVersion": "v1", "kind": "ConfigMap", "dat": {}, "metadata": {"name": "x", "namespace": NAMESPACE}}
        )
    assert refused.value.status == 400


def test_a_token_for_eks_is_a_presigned_request_that_names_the_cluster(account: AwsSession) -> None:
    token = eks_token(account, "training")
    prefix, _, body = token.partition(".")
    url = urlsplit(base64.urlsafe_b64decode(body + "=" * (-len(body) % 4)).decode())
    query = parse_qs(url.query)
    assert prefix == "k8s-aws-v1" and url.netloc == "sts.us-east-2.amazonaws.com"
    assert query["Action"] == ["GetCallerIdentity"] and query["X-Amz-Expires"] == ["60"]
    assert "x-k8s-aws-id" in query["X-Amz-SignedHeaders"][0].split(";")
    now = [0.0]
    tokens = EksToken(account, "training", clock=lambda: now[0])
    made = tokens.current()
    now[0] = 599.0
    assert tokens.current() is made
    now[0] = 601.0
    assert tokens.current() is not made


def test_an_eks_cluster_is_reached_at_its_endpoint_with_such_a_token(
    typed: TypedEks, stubbed: StubbedSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("skytrain.targets.eks.kube.eks_token", lambda session, cluster: TOKEN)
    temporary = typed.folder / "temporary"
    temporary.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(temporary))
    stub, asked = stubbed.stub("eks"), {"name": "training"}
    certificate = base64.b64encode(b"certificate").decode()
    found = {"status": "ACTIVE", "endpoint": typed.cluster.address, "certificateAuthority": {"data": certificate}}
    stub.add_response("describe_cluster", {"cluster": found}, asked)
    eks = replace(CLOUD_DEFAULTS.eks, cluster="training")
    assert open_cluster(eks, lambda: stubbed.session).items(KubeKind("batch/v1", "Job", NAMESPACE)) == []
    assert not list(temporary.iterdir())  # the certificate is handed over without a file
    stub.add_response("describe_cluster", {"cluster": {**found, "status": "CREATING"}}, asked)
    with pytest.raises(SkytrainError, match="is creating"):
        open_cluster(eks, lambda: stubbed.session)
    stub.add_client_error("describe_cluster", "ResourceNotFoundException", "No cluster found for name: training.")
    with pytest.raises(SkytrainError, match="there is no EKS cluster training in us-east-2"):
        open_cluster(eks, lambda: stubbed.session)


def test_a_plan_of_somebody_else_does_not_say_that_its_machines_cost_nothing(
    typed: TypedEks, capsys: pytest.CaptureFixture[str]
) -> None:
    """The price decides when a budget is spent: in the pods, and for the time after which Kubernetes ends them."""
    cheap = plan(offer("g6.12xlarge", 2, "on-demand", usd_per_hour_each=[0.001, 0.001]))
    made = replace(cheap, usd_per_hour=0.001, code=PlannedCode("0", source_hash()), words=WORDS)
    write_plan(replace(made, config=compose(WORDS).values), typed.folder / "plan.json")
    assert typed.launch("budget.usd=0.3", "--yes", "--no-follow") == 2
    assert "they would hardly boot" in capsys.readouterr().err and typed.cluster.all("jobs") == []
    assert typed.launch("budget.usd=5", "--yes", "--no-follow") == 0
    assert "budget.usd_per_hour=4.6016" in str(typed.cluster.all("jobs"))
    words = [*WORDS, "cloud.eks.usd_per_hour=0.001"]
    write_plan(replace(made, words=words, config=compose(WORDS).values), typed.folder / "plan.json")
    assert typed.launch("--yes", "--no-follow") == 2
    assert "--trust cloud.eks.usd_per_hour=0.001" in capsys.readouterr().err


def test_restarts_of_pods_are_counted_by_kubernetes_and_end_with_what_is_left_of_the_budget(
    typed: TypedEks, capsys: pytest.CaptureFixture[str]
) -> None:
    record_spend(typed.store, "gpt2-typed", 3.0)
    words = ("cloud.eks.usd_per_hour=1.5", "--yes", "--no-follow")
    assert typed.launch("budget.usd=3", *words) == 2 and typed.cluster.all("jobs") == []
    assert "nothing is left to rent machines with" in capsys.readouterr().err
    assert typed.launch("budget.usd=6", *words) == 0
    [job] = typed.cluster.all("jobs")
    waits = compose(["cloud=eks"], config_dirs=[typed.folder]).config.cloud.eks.wait
    assert job["spec"]["activeDeadlineSeconds"] == 3600 + 60 + waits  # $3 at 2 x $1.50 an hour, after waiting for nodes
    assert job["spec"]["backoffLimit"] == 2 * eks_requests.FAILURES_PER_NODE


def test_machines_that_no_node_pool_starts_are_refused(typed: TypedEks, capsys: pytest.CaptureFixture[str]) -> None:
    assert typed.launch("--yes", "cloud.eks.instance_families=[p5]") == 3
    said = capsys.readouterr().err
    assert "g6.12xlarge: the cluster starts p5 only" in said and "karpenter.instance_families" in said
    assert typed.cluster.requests == []


def test_a_plan_for_the_cluster_chooses_what_it_can_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    words = ["plan", "recipe=gpt2-124m-pile", "cloud=eks", "--instance", "g5.12xlarge,p4de.24xlarge", "--nodes", "1"]
    monkeypatch.setattr(sys, "argv", ["skytrain", *words])
    with pytest.raises(SystemExit) as ended:
        main()
    said = capsys.readouterr()
    assert ended.value.code and "cloud=eks starts g6, g6e, p4d, p5 only" in said.out + said.err
