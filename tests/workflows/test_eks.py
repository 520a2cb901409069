"""A model trained and served on EKS, from an empty folder: the commands of docs/tutorials/eks-platform.md, tiny."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import yaml

from skytrain.serving import Endpoint, EndpointError
from tests.support.kubernetes import LocalCluster, local_cluster, write_kubeconfig
from tests.support.s3 import S3Server, free_ports
from tests.support.waiting import wait_until

from .shell import Shell

ROOT = Path(__file__).parents[2]
SERVING = ROOT / "infra/kubernetes/base/serving.yaml"
IMAGE = "123456789012.dkr.ecr.us-east-2.amazonaws.com/skytrain@sha256:" + "0123456789abcdef" * 4
SIZE = (
    *("data=text", "data.source.paths=corpus.txt", "data.source.separator='<|endoftext|>'", "data.min_chars=1"),
    *("data.validation_fraction=0.1", "tokenizer=bytes", "model=gpt2-tiny", "model.max_length=64"),
    *("trainer.sequence_length=64", "trainer.micro_batch=4", "trainer.batch_tokens=512", "trainer.steps=40"),
    *("trainer.validate_every=20", "trainer.validate_tokens=512", "trainer.checkpoint_every=10"),
    *("trainer.precision=32-true", "trainer.loggers=[]", "lr_schedule.warmup_steps=3", "optimizer.lr=3e-3"),
)
KEY = "the-key-of-the-endpoint"
# Where vLLM would be: it loads the fetched folder, and continues prompts without sampling.
ENGINE = """
import json, os, sys
from http.server import BaseHTTPRequestHandler, HTTPServer
from transformers import AutoModelForCausalLM, AutoTokenizer

given = dict(zip(sys.argv[3::2], sys.argv[4::2]))
model, tokenizer = (each.from_pretrained(sys.argv[2]) for each in (AutoModelForCausalLM, AutoTokenizer))


class Handler(BaseHTTPRequestHandler):
    def log_message(self, *_):
        pass

    def answer(self, body, status=200):
        data = json.dumps(body).encode()
        allowed = self.headers.get("Authorization") == "Bearer " + os.environ["VLLM_API_KEY"]
        self.send_response(status if allowed else 401)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def do_GET(self):
        self.answer({"data": [{"id": given["--served-model-name"], "max_model_len": int(given["--max-model-len"])}]})

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if self.path.endswith("/chat/completions"):  # as vLLM, of a model without a template
            return self.answer({"error": {"message": "default chat template is no longer allowed"}}, 400)
        ids = tokenizer(body["prompt"], return_tensors="pt").input_ids
        out = model.generate(ids, do_sample=False, max_new_tokens=body["max_tokens"])
        text = tokenizer.decode(out[0, ids.shape[1] :])
        self.send_response(200), self.end_headers()
        for event in (json.dumps({"choices": [{"text": text}]}), "[DONE]"):
            self.wfile.write(f"data: {event}\\n\\n".encode())


HTTPServer((given["--host"], int(given["--port"])), Handler).serve_forever()
"""


@pytest.fixture
def cluster() -> Iterator[LocalCluster]:
    """A cluster after `kubectl apply` of the manifests."""
    with local_cluster() as found:
        for item in yaml.safe_load_all(SERVING.read_text()):
            if item["kind"] in ("ConfigMap", "Deployment"):
                found.add(f"{item['kind'].lower()}s", item)
        yield found


class Pods:
    """Plays the kubelet: the containers of pods, as processes of this machine."""

    def __init__(self, folder: Path, environment: dict[str, str]) -> None:
        self.folder = folder
        self._environment = {**os.environ, **environment, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT / "src")}
        programs = folder / "programs"
        programs.mkdir(parents=True)
        (programs / "engine.py").write_text(ENGINE)
        (programs / "vllm").write_text(f'#!/bin/sh\nexec {sys.executable} {programs}/engine.py "$@"\n')
        (programs / "vllm").chmod(0o755)
        self._path = f"{programs}:{Path(sys.executable).parent}:{os.environ['PATH']}"
        self.logs: list[Path] = []

    def start(self, container: dict[str, Any], command: list[str], fields: dict[str, str]) -> subprocess.Popen[bytes]:
        """Start a container; `fields` are what Kubernetes would fill into its variables."""
        work = self.folder / f"container-{len(self.logs)}"
        work.mkdir()
        variables = {each["name"]: each.get("value") or fields[_source(each)] for each in container["env"]}
        places = {"HOME": str(work), "TMPDIR": str(work), "SKYTRAIN_CACHE": str(work / "cache"), "PATH": self._path}
        more = {"JOB_COMPLETION_INDEX": fields["index"]} if "index" in fields else {}
        self.logs.append(work / "log")
        with self.logs[-1].open("wb") as log:
            return subprocess.Popen(
                command, cwd=work, env={**self._environment, **variables, **places, **more}, stdout=log, stderr=log
            )

    def tell(self) -> str:
        return "\n".join(path.read_text()[-3000:] for path in self.logs)


def _source(variable: dict[str, Any]) -> str:
    source = variable["valueFrom"]
    return str(source["fieldRef"]["fieldPath"] if "fieldRef" in source else source["configMapKeyRef"]["key"])


def train_on_pods(pods: Pods, cluster: LocalCluster, config: Path) -> list[int]:
    """Run the pods of the cluster's only job to their end; return their exit codes."""
    [job] = cluster.all("jobs")
    [container] = job["spec"]["template"]["spec"]["containers"]
    [mount] = [each["mountPath"] for each in container["volumeMounts"] if "config" in each["mountPath"]]
    arguments = [word.replace(mount, str(config)) for word in container["args"]]
    cluster.run_pods()
    started = []
    for index, pod in enumerate(cluster.pods("Running")):
        fields = {
            "index": str(index),
            "metadata.name": pod["metadata"]["name"],
            "status.podIP": f"127.0.0.{index + 1}",
            "spec.nodeName": pod["spec"]["nodeName"],
        }
        started.append(pods.start(container, ["bash", str(ROOT / "docker/entrypoint.sh"), *arguments], fields))
    codes = [each.wait(timeout=600) for each in started]
    for pod, code in zip(cluster.pods("Running"), codes, strict=True):
        cluster.end_pod(pod, code)
    return codes


def serve_on_pods(pods: Pods, cluster: LocalCluster, stack: ExitStack) -> str:
    """Run the containers of the rolled-out Deployment; return the address of its engine."""
    [deployment] = cluster.all("deployments")
    [data] = [each["data"] for each in cluster.all("configmaps") if each["metadata"]["name"] == "vllm-model"]
    spec = deployment["spec"]["template"]["spec"]
    [fetch], [engine, _] = spec["initContainers"], spec["containers"]
    model = pods.folder / "model"
    words = [word.replace("$(MODEL_SOURCE)", data["MODEL_SOURCE"]) for word in fetch["args"]]
    words = [word.replace("/models/model", str(model)) for word in words]
    assert pods.start(fetch, ["bash", str(ROOT / "docker/entrypoint.sh"), *words], data).wait(300) == 0, pods.tell()
    (pods.folder / "api-key").write_text(KEY)
    port = str(free_ports(1)[0])
    script = engine["args"][0].replace("/models/model", str(model)).replace("8001", port)
    script = script.replace("/secrets/api-key", str(pods.folder / "api-key"))
    process = pods.start(engine, [*engine["command"], script], data)
    stack.callback(process.wait)
    stack.callback(process.kill)
    return f"http://127.0.0.1:{port}"


def answers(url: str) -> bool:
    try:
        return bool(Endpoint(url, KEY).models())
    except EndpointError:
        return False


@pytest.mark.slow
def test_a_model_is_trained_by_pods_and_served_by_others(
    tmp_path: Path, s3_server: S3Server, cluster: LocalCluster
) -> None:
    aws = {**s3_server.environment(), "AWS_CONFIG_FILE": "none", "AWS_SHARED_CREDENTIALS_FILE": "none"}
    shell = Shell(tmp_path, **aws, SKYTRAIN_API_KEY=KEY)
    texts = [f"Line {number}: the quick brown fox jumps over the lazy dog." for number in range(400)]
    (tmp_path / "corpus.txt").write_text("\n<|endoftext|>\n".join(texts))
    outputs = {"project": "demo", "account_id": "123456789012", "region": "us-east-1", "bucket": s3_server.bucket}
    outputs["store"] = s3_server.new_root()
    (tmp_path / "outputs.json").write_text(json.dumps({name: {"value": value} for name, value in outputs.items()}))
    write_kubeconfig(tmp_path / "kubeconfig", cluster)
    shell.run("cloud", "init", "--from", "outputs.json", "--owner", "ada")

    eks = ("cloud=eks", "cloud.eks.kubeconfig=kubeconfig")
    shell.run("prepare", *SIZE, "cloud=eks")
    machines = ("--instance", "g6.xlarge", "--nodes", "2", "--market", "spot", "--region", "us-east-1")
    shell.run("plan", *SIZE, "run=small", "cloud=eks", "budget.usd=150", *machines, "--out", "plan.json")
    launch = ("launch", "train", "--plan", "plan.json", *eks, f"cloud.eks.image={IMAGE}")
    shown = [item["kind"] for item in yaml.safe_load_all(shell.run(*launch, "--dry-run").stdout)]
    assert shown == ["ConfigMap", "Service", "Job"] and cluster.all("jobs") == []
    assert "launched small" in shell.run(*launch, "--yes", "--no-follow").stdout
    pods = Pods(tmp_path / "pods", aws)
    assert train_on_pods(pods, cluster, tmp_path) == [0, 0], pods.tell()
    assert "complete" in shell.run("status", "small", *eks).stdout
    assert "step 40 | validation loss" in shell.run("logs", "small", *eks).stdout

    with ExitStack() as stack:
        shell.run("serve", "small", "--target", "eks", *eks, "serve.dtype=float32")
        url = serve_on_pods(pods, cluster, stack)
        wait_until(lambda: answers(url), 120, pods.tell)
        question = ("--max-tokens", "24", "--temperature", "0")
        said = shell.run("chat", "--url", url, *question, typed="Line 7: the quick\n").stdout
        own = shell.run("generate", "--from", "small", "cloud=eks", "--prompt", "Line 7: the quick", *question).stdout
        assert said.strip() and own.strip().endswith(said.strip())
    assert "1 of 1 pods answer" in shell.run("status", "vllm", *eks).stdout
    shell.run("stop", "vllm", *eks, "--yes")
    shell.run("gc", *eks, "--delete", "--yes")
    assert cluster.all("jobs") == [] and cluster.all("deployments")[0]["spec"]["replicas"] == 0
