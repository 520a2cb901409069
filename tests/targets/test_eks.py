"""Kubernetes: the objects of six plans, their schemas, names and what is refused."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from skytrain.config import SkytrainError
from skytrain.targets.eks.requests import (
    EksJobSpec,
    PodSize,
    check_grace,
    kube_job_name,
    offer_size,
    smoke_size,
    to_yaml,
)
from skytrain.targets.eks.target import read_pod
from tests.support.kubernetes import check_object
from tests.support.settings import CLOUD_DEFAULTS

from .plans import offer
from .test_ec2 import GOLDEN, NOW, account

IMAGE = "123456789012.dkr.ecr.us-east-2.amazonaws.com/skytrain@sha256:" + "0123456789abcdef" * 4
FILES = {"cloud/aws.yaml": "project: pile\n", "recipe/mine.yaml": "# @package _global_\nseed: 7\n"}
PLANS: dict[str, tuple[PodSize, dict[str, Any]]] = {
    "one-g6e": (offer_size(offer("g6e.xlarge", 1, "on-demand")), {}),
    "two-p4d-efa": (offer_size(offer("p4d.24xlarge", 2, "on-demand")), {"volumes": {"fsx": "/fsx"}}),
    "four-p5": (offer_size(offer("p5.48xlarge", 4, "on-demand")), {"priority_class": "skytrain-training"}),
    "spot": (offer_size(offer("g5.12xlarge", 2, "spot")), {"environment": {"NCCL_DEBUG": "INFO"}}),
    "trainjob": (offer_size(offer("p4d.24xlarge", 2, "on-demand")), {}),
    "cpu-smoke": (smoke_size(2, 4), {"node_labels": {"skytrain/pool": "system"}}),
}


def job_of(size: PodSize, kind: str = "job", files: dict[str, str] = FILES, **settings: Any) -> EksJobSpec:
    eks = replace(CLOUD_DEFAULTS.eks, **{"image": IMAGE, "cluster": "training", "job_kind": kind, **settings})
    cloud = replace(account(), eks=eks)
    words = ("node", "recipe=gpt2-124m-pile", "cloud=eks", "run=gpt2", "--nodes", str(size.nodes), "--launch", "00001")
    return EksJobSpec(
        run="gpt2",
        launch="00001",
        project="pile",
        owner="ada",
        size=size,
        cloud=cloud,
        run_seconds=36000.0,
        launched_at=NOW,
        command=words,
        files=files,
    )


def job_named(name: str) -> EksJobSpec:
    size, settings = PLANS[name]
    return job_of(size, "trainjob" if name == "trainjob" else "job", **settings)


def pod_of(job: EksJobSpec) -> dict[str, Any]:
    spec = job.objects()[-1]["spec"] if job.cloud.eks.job_kind == "job" else {}
    return dict(spec["template"]["spec"])


@pytest.mark.parametrize("name", PLANS)
def test_the_objects_of_a_plan_are_these_and_their_schemas_take_them(name: str) -> None:
    objects = job_named(name).objects()
    text = to_yaml(objects)
    path = Path(GOLDEN / f"eks-{name}.yaml")
    assert text == path.read_text()
    assert list(yaml.safe_load_all(text)) == objects  # what a person reads is what is sent
    for each in objects:
        check_object(each)


def test_a_misspelt_field_does_not_pass_the_schemas() -> None:
    for name, place in (("one-g6e", "spec"), ("trainjob", "spec")):
        last = job_named(name).objects()[-1]
        last[place]["activeDeadlineSecond"] = 5
        with pytest.raises(AssertionError, match="activeDeadlineSecond"):
            check_object(last)
    runtime = job_named("trainjob").objects()[1]
    runtime["spec"]["template"]["spec"]["replicatedJobs"][0]["template"]["spec"]["completion"] = 2
    with pytest.raises(AssertionError, match="completion"):
        check_object(runtime)


def test_every_pod_is_restricted_and_named_by_its_digest() -> None:
    for name in PLANS:
        text = json.dumps(job_named(name).objects())
        assert '"runAsNonRoot": true' in text and '"readOnlyRootFilesystem": true' in text
        assert '"drop": ["ALL"]' in text and '"automountServiceAccountToken": false' in text
        assert "privileged" not in text and "hostPath" not in text and "hostNetwork" not in text
        assert set(re.findall(r'"image": "([^"]+)"', text)) == {IMAGE}


def test_a_pod_takes_its_machine_with_gpus_efa_and_huge_pages() -> None:
    pod = pod_of(job_named("two-p4d-efa"))
    resources = pod["containers"][0]["resources"]
    assert resources["requests"] == resources["limits"]  # guaranteed: it is the last that a node evicts
    assert resources["limits"]["nvidia.com/gpu"] == "8" and resources["limits"]["vpc.amazonaws.com/efa"] == "4"
    assert resources["limits"]["hugepages-2Mi"] == "5120Mi" and int(resources["limits"]["cpu"]) < 96
    assert pod["nodeSelector"]["node.kubernetes.io/instance-type"] == "p4d.24xlarge"
    assert {each["key"] for each in pod["tolerations"]} == {"nvidia.com/gpu", "vpc.amazonaws.com/efa"}
    assert "nvidia.com/gpu" not in json.dumps(job_named("cpu-smoke").objects())


def test_spot_pods_go_to_spot_nodes_and_leave_them_when_karpenter_drains_them() -> None:
    job = job_named("spot")
    pod, template = pod_of(job), job.objects()[-1]["spec"]["template"]
    tolerated = {each["key"] for each in pod["tolerations"]}
    assert "skytrain/spot" in tolerated and "karpenter.sh/disrupted" not in tolerated
    terms = pod["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
    assert [term["matchExpressions"][0]["values"] for term in terms] == [["spot"], ["SPOT"]]
    assert template["metadata"]["annotations"]["karpenter.sh/do-not-disrupt"] == "true"
    assert pod["terminationGracePeriodSeconds"] == 110


def test_disruptions_cost_no_retry_and_final_exit_codes_end_the_job() -> None:
    spec = job_named("spot").objects()[-1]["spec"]
    rules = spec["podFailurePolicy"]["rules"]
    assert rules[0] == {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]}
    by_action = {rule["action"]: rule["onExitCodes"]["values"] for rule in rules[1:]}
    assert by_action == {"Ignore": [7, 12], "FailJob": [2, 6, 8, 9, 11]}
    assert spec["activeDeadlineSeconds"] == 36000 + 3600 and spec["podReplacementPolicy"] == "Failed"


REFUSED: dict[str, dict[str, Any]] = {
    "cloud.eks.image is not set": {"image": None},
    "not an image by digest": {"image": "repo/skytrain:latest"},
    "cloud.eks.namespace=Not_A_Name": {"namespace": "Not_A_Name"},
}


@pytest.mark.parametrize("problem", REFUSED)
def test_what_no_cluster_would_take_is_told_first(problem: str) -> None:
    with pytest.raises(SkytrainError, match=re.escape(problem)):
        job_of(smoke_size(1, 2), **REFUSED[problem]).objects()


def test_a_grace_period_that_is_shorter_than_a_save_is_refused() -> None:
    with pytest.raises(SkytrainError, match="a save may take"):
        check_grace(replace(CLOUD_DEFAULTS.eks, grace=30.0), 100.0)


def test_long_and_odd_run_names_give_valid_and_different_job_names() -> None:
    names = [
        kube_job_name(run, "00001")
        for run in ("r" * 300, "r" * 301, "A_b", "a-b", "a--b", "...", "124m", "run-124m", "9" * 60)
    ]
    assert len(set(names)) == len(names)
    assert all(re.fullmatch(r"[a-z]([-a-z0-9]{0,50}[a-z0-9])?", name) for name in names)  # as Services want


def test_run_names_that_look_like_numbers_are_text_in_yaml() -> None:
    """kubectl reads 1e5 and 00008 as numbers, and a label that is a number is refused."""
    shown = to_yaml([{"labels": {"run": "1e5", "launch": "00008", "word": "1e5-x"}}])
    assert "'1e5'" in shown and "'00008'" in shown and "word: 1e5-x" in shown


def test_a_pod_is_known_by_its_index_so_that_a_replacement_is_the_same_host(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(SkytrainError, match="JOB_COMPLETION_INDEX is not set"):
        read_pod(2)
    monkeypatch.setenv("JOB_COMPLETION_INDEX", "1")
    with pytest.raises(SkytrainError, match="POD_IP is not set"):
        read_pod(2)
    monkeypatch.setenv("POD_IP", "10.0.0.7")
    assert (read_pod(2).name, read_pod(2).address) == ("pod-1", "10.0.0.7")
    with pytest.raises(SkytrainError, match="planned for 1 pods"):
        read_pod(1)
