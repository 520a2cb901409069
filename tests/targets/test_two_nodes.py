"""A recipe of thirteen billion parameters on two p4d.24xlarge: `launch --dry-run` prints a whole request on every target."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest
import yaml

from .conftest import StubbedSession
from .test_checks import quotas
from .test_eks import IMAGE
from .test_sagemaker_command import TypedSageMaker, typed  # noqa: F401 - a fixture

P_ON_DEMAND = "L-417A185B"
MACHINE = ["--instance", "p4d.24xlarge", "--nodes", "2", "--market", "on-demand"]
SHAPE = ["--nodes", "2", "--processes", "8", "--launch", "00001"]


def dry_run(typed: TypedSageMaker, capsys: pytest.CaptureFixture[str], *words: str) -> str:  # noqa: F811
    given = ["launch", "train", "recipe=llama-2-13b-p4d", "run=wide", "budget.usd=3000", *words, "--dry-run"]
    assert typed(*given) == 0, capsys.readouterr().err
    assert typed.store.list("runs") == []
    return capsys.readouterr().out


def test_two_nodes_are_asked_for_with_their_gpus_their_network_and_the_command_of_the_agent(
    typed: TypedSageMaker,  # noqa: F811
    stubbed: StubbedSession,
    capsys: pytest.CaptureFixture[str],
) -> None:
    quotas(stubbed, (P_ON_DEMAND, 192.0))
    calls = json.loads(dry_run(typed, capsys, "cloud=ec2", *MACHINE))
    asked: dict[str, dict[str, Any]] = {one["operation"]: one["parameters"] for one in calls}
    template = asked["CreateLaunchTemplate"]["LaunchTemplateData"]
    assert template["InstanceType"] == "p4d.24xlarge"
    kinds = [one["InterfaceType"] for one in template["NetworkInterfaces"]]
    assert kinds == ["interface", *["efa-only"] * 4]
    assert (
        asked["CreatePlacementGroup"]["Strategy"] == "cluster" and asked["SetDesiredCapacity"]["DesiredCapacity"] == 2
    )
    script = base64.b64decode(template["UserData"]).decode()
    assert " ".join(f'"{word}"' for word in SHAPE) in script and '"--efa" "4"' in script

    stub = stubbed.stub("service-quotas")
    held = {"QuotaName": "ml.p4d.24xlarge for training job usage", "QuotaCode": "L-P4", "Value": 2.0}
    stub.add_response("list_service_quotas", {"Quotas": [held]}, {"ServiceCode": "sagemaker"})
    own = [f"cloud.sagemaker.image={typed.image}", "cloud.sagemaker.usd_per_hour=30"]
    calls = json.loads(dry_run(typed, capsys, "cloud=sagemaker", *own, *MACHINE))
    assert {one["operation"] for one in calls[:-1]} == {"CreateRole", "AttachRolePolicy"}
    machines = calls[-1]["parameters"]["ResourceConfig"]
    assert (machines["InstanceType"], machines["InstanceCount"]) == ("ml.p4d.24xlarge", 2)

    own = [f"cloud.eks.image={IMAGE}", "cloud.eks.cluster=training"]
    *_, job = yaml.safe_load_all(dry_run(typed, capsys, "cloud=eks", *own, *MACHINE))
    [container] = job["spec"]["template"]["spec"]["containers"]
    assert job["spec"]["completions"] == job["spec"]["parallelism"] == 2 and container["args"][-6:] == SHAPE
    limits = container["resources"]["limits"]
    assert (limits["nvidia.com/gpu"], limits["vpc.amazonaws.com/efa"]) == ("8", "4")

    sizes = ["cloud.slurm.nodes=2", "cloud.slurm.processes=8", "cloud.slurm.gpus=8"]
    text = dry_run(typed, capsys, "cloud=slurm", *sizes, "store.root=store")
    assert "#SBATCH --nodes=2\n" in text and "#SBATCH --gpus-per-node=8\n" in text
    assert '--nodes 2 --processes 8 --name "$SLURMD_NODENAME" --launch 00001' in text
