"""`skytrain serve --target eks`: the Deployment of infra/kubernetes on an API server on this machine."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from skytrain.aws import cloud_files
from skytrain.cli.main import main
from skytrain.config import SkytrainError, compose
from skytrain.runs import Silent
from skytrain.serving import open_served
from skytrain.storage import open_store
from skytrain.targets import ServeJob, ServeRequest, cluster_of
from skytrain.targets.eks import serve as eks
from skytrain.targets.eks.kube import open_cluster
from tests.support.kubernetes import LocalCluster, local_cluster, write_kubeconfig
from tests.support.settings import CLOUD_DEFAULTS

MANIFEST = Path(__file__).parents[2] / "infra/kubernetes/base/serving.yaml"
OUTPUTS = {"project": "demo", "account_id": "123456789012", "region": "us-east-2", "bucket": "bucket"}
PLURALS = {"ConfigMap": "configmaps", "Deployment": "deployments"}


class Notes(Silent):
    def __init__(self) -> None:
        self.notes: list[str] = []

    def note(self, text: str) -> None:
        self.notes.append(text)


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[LocalCluster]:
    """A cluster with what `kubectl apply -k infra/kubernetes` makes, and a user's folder."""
    with local_cluster() as found:
        for item in yaml.safe_load_all(MANIFEST.read_text()):
            if item["kind"] in PLURALS:
                found.add(PLURALS[item["kind"]], item)
        for path, text in cloud_files(OUTPUTS, "ada").items():
            (tmp_path / path).parent.mkdir(exist_ok=True)
            (tmp_path / path).write_text(text)
        write_kubeconfig(tmp_path / "kubeconfig", found)
        monkeypatch.chdir(tmp_path)
        monkeypatch.setattr(eks, "POLL_SECONDS", 0.0)
        yield found


def typed(monkeypatch: pytest.MonkeyPatch, *words: str) -> int:
    monkeypatch.setattr(sys, "argv", ["skytrain", *words])
    with pytest.raises(SystemExit) as ended:
        main()
    return int(ended.value.code or 0)


def job_of(folder: Path, *words: str, **request: Any) -> ServeJob:
    settings = ["cloud=eks", "cloud.eks.kubeconfig=kubeconfig", "store.root=s3://bucket/project", *words]
    return ServeJob(compose(settings, [Path()]), ServeRequest(str(folder), "eks", **request))


def test_a_model_is_uploaded_named_and_rolled_out_shown_and_stopped(
    cluster: LocalCluster,
    folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    store, model, said = open_store(str(tmp_path / "bucket")), open_served(folder, "my run@5"), Notes()
    monkeypatch.setattr(eks, "open_store", lambda _: store)
    job = job_of(folder, "serve.gpus=2", "serve.max_length=64")
    assert eks.TARGET.check(job) == "bf16"
    assert eks.TARGET.serve(job, model, said) == 0
    key = f"exports/my-run-5-{model.sha256[:12]}"
    [config_map], [deployment] = cluster.all("configmaps"), cluster.all("deployments")
    assert config_map["data"] == {
        "MODEL_SOURCE": store.url(key), "MODEL_NAME": "my run@5", "MAX_MODEL_LEN": "64", "TENSOR_PARALLEL": "2",
    }  # fmt: skip
    template = deployment["spec"]["template"]
    assert deployment["spec"]["replicas"] == 1 and template["metadata"]["annotations"]["skytrain/model"] == model.sha256
    assert template["spec"]["containers"][0]["resources"]["limits"]["nvidia.com/gpu"] == "2"
    assert template["spec"]["containers"][0]["startupProbe"]  # the rest is as it was
    assert "port-forward service/vllm" in said.notes[-1]
    manifests = yaml.safe_load_all(eks.keep_served(MANIFEST.read_text(), cluster_of(job.config)))
    kept = {each["kind"]: each for each in manifests}  # as they are applied again while the model is served
    assert kept["ConfigMap"]["data"] == config_map["data"] and kept["Deployment"]["spec"]["replicas"] == 1
    container, proxy = kept["Deployment"]["spec"]["template"]["spec"]["containers"]
    assert "nvidia.com/gpu" not in proxy["resources"]["limits"]
    assert {each["nvidia.com/gpu"] for each in container["resources"].values()} == {"2"}

    words = ["cloud=eks", "cloud.eks.kubeconfig=kubeconfig"]
    assert typed(monkeypatch, "status", "vllm", *words) == 0
    assert "my run@5: 1 of 1 pods answer" in capsys.readouterr().out
    assert typed(monkeypatch, "stop", "vllm", *words, "--yes") == 0
    assert "no pod serves any more" in capsys.readouterr().out
    assert cluster.all("deployments")[0]["spec"]["replicas"] == 0

    # What the init container does with the uploaded folder.
    fetched = tmp_path / "models/model"
    [init] = template["spec"]["initContainers"]
    arguments = [
        word.replace("$(MODEL_SOURCE)", store.url(key)).replace("/models/model", str(fetched)) for word in init["args"]
    ]
    assert typed(monkeypatch, *arguments) == 0
    assert {path.name: path.read_bytes() for path in fetched.iterdir() if path.suffix == ".safetensors"} == {
        path.name: path.read_bytes() for path in folder.iterdir() if path.suffix == ".safetensors"
    }
    weights = next(fetched.glob("*.safetensors"))
    (tmp_path / f"bucket/{key}/{weights.name}").write_bytes(b"x" * weights.stat().st_size)
    weights.unlink()
    capsys.readouterr()
    assert typed(monkeypatch, *arguments) != 0
    assert weights.name in capsys.readouterr().err


def test_a_model_that_does_not_start_is_told_with_the_reason(cluster: LocalCluster, folder: Path) -> None:
    client = open_cluster(replace(CLOUD_DEFAULTS.eks, kubeconfig="kubeconfig"), lambda: pytest.fail("no AWS"))
    cluster.faults.held_rollouts = True
    labels = {"app.kubernetes.io/name": "skytrain", "app.kubernetes.io/component": "serving"}
    condition = {"type": "PodScheduled", "status": "False", "message": "0/2 nodes are available: no GPU"}
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "vllm-1", "namespace": eks.NAMESPACE, "labels": labels},
    }
    cluster.add("pods", {**pod, "spec": {"containers": []}, "status": {"phase": "Pending", "conditions": [condition]}})
    eks.deploy(client, {"MODEL_SOURCE": "s3://b/m", "TENSOR_PARALLEL": "1"}, "0" * 64)
    said = Notes()
    with pytest.raises(SkytrainError, match="no node takes it: 0/2 nodes are available: no GPU"):
        eks.wait_until_ready(client, -1.0, said, lambda _: None)
    assert said.notes == ["the pods wait: no node takes it: 0/2 nodes are available: no GPU"]


def test_what_is_missing_is_told_before_the_model_is_exported(cluster: LocalCluster, folder: Path) -> None:
    with pytest.raises(SkytrainError, match="add cloud=eks"):
        eks.TARGET.check(ServeJob(compose(), ServeRequest(str(folder), "eks")))
    with pytest.raises(SkytrainError, match="pods fetch the model from a bucket"):
        eks.TARGET.check(job_of(folder, "store.root=here"))
    cluster.objects.clear()
    with pytest.raises(SkytrainError, match="the cluster has no Deployment vllm"):
        eks.TARGET.check(job_of(folder))


def test_a_dry_run_asks_nobody(cluster: LocalCluster, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    job = job_of(folder, dry_run=True)
    eks.TARGET.check(job)
    assert eks.TARGET.serve(job, open_served(folder, "m"), Silent()) == 0
    config_map, deployment = json.loads(capsys.readouterr().out)
    assert config_map["body"]["data"]["MODEL_NAME"] == "m" and not cluster.requests
    [container] = deployment["body"]["spec"]["template"]["spec"]["containers"]
    assert container["resources"]["limits"] == {"nvidia.com/gpu": config_map["body"]["data"]["TENSOR_PARALLEL"]}
