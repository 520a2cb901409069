"""SageMaker: the request of a plan, what is refused, and the lines of training that its metrics are read from."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from skytrain.aws import AwsSession, Tags
from skytrain.config import SkytrainError
from skytrain.planning import PlannedOffer
from skytrain.runs import progress_line
from skytrain.targets.jobs import scheduler_job_name
from skytrain.targets.sagemaker.requests import METRICS, JobPlaces, SageMakerJobSpec
from skytrain.training.callbacks import step_line

from .plans import offer
from .test_ec2 import GOLDEN, NOW, PLANS, account, offer_of

IMAGE = "763104351884.dkr.ecr.us-east-2.amazonaws.com/pytorch-training@sha256:" + "0123456789abcdef" * 4
ROLE = "arn:aws:iam::123456789012:role/skytrain-pile-us-east-2-node"
FOLDER = "s3://bucket/pile/runs/gpt2"
PLACES = JobPlaces(
    "s3://bucket/pile/launches/gpt2/00001", "s3://bucket/pile/bundles/0123456789abcdef",
    f"{FOLDER}/launches/00001/output", f"{FOLDER}/tensorboard",
)  # fmt: skip
GOLDEN_PLANS = ("two-g5-12xlarge-spot", "two-p4d-efa", "g6e-on-demand")


def job_of(planned: PlannedOffer, **settings: Any) -> SageMakerJobSpec:
    cloud = account()
    wanted = replace(cloud.sagemaker, **{"image": IMAGE, "role": ROLE, **settings})
    return SageMakerJobSpec(
        run="gpt2",
        launch="00001",
        offer=planned,
        tags=Tags("pile", "ada"),
        cloud=replace(cloud, sagemaker=wanted),
        places=PLACES,
        launched_at=NOW,
    )


def body(planned: PlannedOffer, **settings: Any) -> dict[str, Any]:
    return job_of(planned, **settings).request().body()


@pytest.mark.parametrize("name", GOLDEN_PLANS)
def test_the_request_of_a_plan_is_this(name: str) -> None:
    text = json.dumps(job_of(offer_of(*PLANS[name])).request().render(), indent=1) + "\n"
    assert text == Path(GOLDEN / f"sagemaker-{name}.json").read_text()


def test_spot_waits_within_a_limit_and_its_kill_time_is_the_sum() -> None:
    planned = offer("g5.12xlarge", 2, "spot", kill_after_seconds=7200.0)
    found = body(planned, wait=3600.0)
    assert found["EnableManagedSpotTraining"] is True
    assert found["StoppingCondition"] == {"MaxRuntimeInSeconds": 7200, "MaxWaitTimeInSeconds": 10800}
    tags = {tag["Key"]: tag["Value"] for tag in found["Tags"]}
    assert tags["skytrain:run"] == "gpt2" and tags["skytrain:expires-at"] == "2026-11-15T15:30:20Z"


def test_a_job_on_demand_has_a_limit_for_waiting_and_may_use_a_warm_pool_or_a_training_plan() -> None:
    planned = offer("g5.12xlarge", 2, "on-demand", kill_after_seconds=7200.0)
    found = body(planned, warm_pool=600.0, wait=0.0)
    assert found["StoppingCondition"] == {"MaxRuntimeInSeconds": 7200, "MaxPendingTimeInSeconds": 1800}
    assert found["EnableManagedSpotTraining"] is False
    assert found["ResourceConfig"]["KeepAlivePeriodInSeconds"] == 600
    plan = "arn:aws:sagemaker:us-east-2:123456789012:training-plan/may"
    assert body(planned, training_plan=plan)["ResourceConfig"]["TrainingPlanArn"] == plan


def test_a_volume_is_encrypted_with_the_key_and_local_disks_take_none() -> None:
    plain = body(offer("g5.12xlarge", 1, "on-demand"), volume_gb=9000)["ResourceConfig"]
    assert "VolumeKmsKeyId" not in plain and plain["VolumeSizeInGB"] == 3800  # all that its disks hold
    assert body(offer("g5.12xlarge"))["OutputDataConfig"]["KmsKeyId"].endswith("key/k")


def test_checkpoints_are_not_left_to_sagemakers_copying_and_no_metadata_service_is_asked() -> None:
    found = body(offer(), environment={"NCCL_DEBUG": "INFO"})
    assert "CheckpointConfig" not in found
    assert found["Environment"] == {
        "AWS_REGION": "us-east-2", "AWS_EC2_METADATA_DISABLED": "true", "NCCL_DEBUG": "INFO",
    }  # fmt: skip


REFUSED: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "cloud.sagemaker.image is not set": ({"image": None}, {}),
    "not an image in ECR by digest": ({"image": IMAGE.partition("@")[0] + ":2.13"}, {}),
    "warm_pool is set, and the plan's machines are spot": ({"warm_pool": 60.0}, {}),
    "training_plan is set, and the plan's machines are spot": ({"training_plan": "arn:x"}, {}),
    "SageMaker takes one of them": ({"training_plan": "arn:x", "warm_pool": 60.0}, {"market": "on-demand"}),
    "ends after 28 days": ({}, {"kill_after_seconds": 29 * 86400.0}),
    "waits for machines for at most 28 days": ({"wait": 29 * 86400.0}, {}),
}


@pytest.mark.parametrize("problem", REFUSED)
def test_what_sagemaker_refuses_is_told_before_it_is_asked(problem: str) -> None:
    settings, planned = REFUSED[problem]
    with pytest.raises(SkytrainError, match=re.escape(problem)):
        job_of(offer(**planned), **settings).request()


def test_long_and_odd_run_names_give_valid_and_different_job_names() -> None:
    names = [scheduler_job_name("pile", run, "00001") for run in ("r" * 300, "r" * 301, "a_b", "a-b", "a--b")]
    assert len(set(names)) == len(names)
    assert all(re.fullmatch(r"[a-zA-Z0-9](-*[a-zA-Z0-9]){0,62}", name) for name in names)
    assert scheduler_job_name("pile", "gpt2", "00001") == "skytrain-pile-gpt2-00001"


def test_each_metric_is_read_from_the_line_that_training_prints() -> None:
    record = {
        "train/loss": 3.25, "train/lr": 6e-4, "train/grad_norm": 1.125, "perf/step_ms": 412.4,
        "perf/tokens_per_s": 1.2e6, "perf/mfu": 0.431, "cost/usd": 1.5, "cost/projected_usd": 40.25,
    }  # fmt: skip
    step = progress_line("step", 20, 300, step_line(record), 3600.0)
    expected = {
        "train/step": "20", "train/loss": "3.2500", "train/lr": "6.00e-04", "train/grad_norm": "1.125",
        "perf/step_ms": "412", "perf/mfu_percent": "43.1", "cost/usd": "1.50",
    }  # fmt: skip
    assert {name: found[1] for name, regex in METRICS.items() if (found := re.search(regex, step))} == expected
    validated = "step 20 | validation loss 3.3012"
    found = {name: match[1] for name, regex in METRICS.items() if (match := re.search(regex, validated))}
    assert found == {"val/loss": "3.3012"}
    broken = progress_line("step", 21, 300, step_line({**record, "train/loss": float("nan")}), None)
    assert re.search(METRICS["train/loss"], broken)[1] == "nan"  # type: ignore[index]


def test_a_local_control_plane_takes_the_request(account: AwsSession) -> None:
    job = job_of(offer("g5.12xlarge", 2))
    account.perform(job.request())
    found = account.client("sagemaker").describe_training_job(TrainingJobName=job.name)
    assert found["ResourceConfig"]["InstanceType"] == "ml.g5.12xlarge"
    assert found["StoppingCondition"]["MaxWaitTimeInSeconds"] == job.run_seconds + job.wait_seconds
