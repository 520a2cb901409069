"""`skytrain launch cloud=sagemaker`, status, logs and stop as they are typed, against a local control plane."""

from __future__ import annotations

import hashlib
import json
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from botocore.stub import Stubber
from moto.sagemaker.models import sagemaker_backends
from moto.sagemaker.responses import SageMakerResponse

from skytrain.aws import Call, CloudError, PushedImage, record_image
from skytrain.cli import screen
from skytrain.cli.main import main
from skytrain.config import compose
from skytrain.planning import Price, save_catalog
from skytrain.planning.catalog import packaged_catalog
from skytrain.runs import launches_of
from skytrain.storage import open_store
from skytrain.targets import limits as launch_limits
from skytrain.targets.sagemaker.jobs import LOG_GROUP, on_demand_usd
from tests.support.token_manifests import store_manifests

from .conftest import StubbedSession, record_spend
from .ground import Ground
from .test_launch_command import Typed

JOB = "skytrain-demo-gpt2-typed-00001"
MANIFEST = "application/vnd.docker.distribution.manifest.v2+json"
QUOTA = "ml.g5.xlarge for spot training job usage"
TRUST = {
    "Version": "2012-10-17",
    "Statement": [
        {"Effect": "Allow", "Action": "sts:AssumeRole", "Principal": {"Service": ["sagemaker.amazonaws.com"]}}
    ],
}


def quota(stubbed: StubbedSession, value: float) -> None:
    """The answer to one launch's question about the quota of its type."""
    stub, asked = stubbed.stub("service-quotas"), {"ServiceCode": "sagemaker"}
    listed = [{"QuotaName": "another", "QuotaCode": "L-0", "Value": 9.0}]
    stub.add_response("list_service_quotas", {"Quotas": listed}, asked)
    held = [{"QuotaName": QUOTA, "QuotaCode": "L-SPOT", "Value": value}]
    stub.add_response("list_aws_default_service_quotas", {"Quotas": held}, asked)


class TypedSageMaker(Typed):
    """A user's folder after `skytrain cloud init` with SageMaker switched on, and a plan."""

    def __init__(self, folder: Path, ground: Ground, monkeypatch: pytest.MonkeyPatch) -> None:
        super().__init__(folder, ground, monkeypatch)
        self.session = ground.session
        self.session.client("iam").update_assume_role_policy(RoleName="demo-node", PolicyDocument=json.dumps(TRUST))
        ecr = self.session.client("ecr")
        ecr.create_repository(repositoryName="images")
        manifest = json.dumps(
            {"schemaVersion": 2, "mediaType": MANIFEST, "config": {"digest": "sha256:" + "0" * 64}, "layers": []}
        )
        pushed = ecr.put_image(repositoryName="images", imageManifest=manifest, imageTag="1")["image"]["imageId"]
        self.image = f"123456789012.dkr.ecr.us-east-2.amazonaws.com/images@{pushed['imageDigest']}"

    def __call__(self, *words: str) -> int:
        self._monkeypatch.setattr(sys, "argv", ["skytrain", *words])
        with pytest.raises(SystemExit) as ended:
            main()
        return int(ended.value.code or 0)

    def launch(self, *words: str) -> int:
        usual = ["train", "--plan", "plan.json", "cloud=sagemaker", f"cloud.sagemaker.image={self.image}"]
        return self("launch", *usual, "cloud.sagemaker.usd_per_hour=1.5", *words)

    @property
    def jobs(self) -> dict[str, Any]:
        found: dict[str, Any] = sagemaker_backends["123456789012"]["us-east-2"].training_jobs
        return found


@pytest.fixture
def typed(tmp_path: Path, ground: Ground, monkeypatch: pytest.MonkeyPatch) -> TypedSageMaker:
    return TypedSageMaker(tmp_path, ground, monkeypatch)


def test_without_an_image_the_one_that_image_push_recorded_is_used(
    typed: TypedSageMaker, stubbed: StubbedSession, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [
        "launch",
        "train",
        "--plan",
        "plan.json",
        "cloud=sagemaker",
        "cloud.sagemaker.usd_per_hour=1.5",
        "--dry-run",
    ]
    assert typed(*words) == 2
    assert "the store records none" in capsys.readouterr().err
    record_image(
        typed.store,
        PushedImage(uri=typed.image, tag="1", base="base@sha256:0", revision="abc", pushed_at="2026-11-16T00:00:00Z"),
    )
    quota(stubbed, 1.0)
    assert typed(*words) == 0
    [*_, shown] = json.loads(capsys.readouterr().out)
    assert shown["parameters"]["AlgorithmSpecification"]["TrainingImage"] == typed.image


def test_doctor_checks_what_a_training_job_needs_with_and_without_a_plan(
    typed: TypedSageMaker, stubbed: StubbedSession, capsys: pytest.CaptureFixture[str]
) -> None:
    stub, asked = stubbed.stub("service-quotas"), {"ServiceCode": "sagemaker"}

    def listed(held: float) -> None:
        default = {"QuotaName": "ml.p4d.24xlarge for training job usage", "QuotaCode": "L-1", "Value": 0.0}
        stub.add_response("list_aws_default_service_quotas", {"Quotas": [default]}, asked)
        own = {"QuotaName": QUOTA, "QuotaCode": "L-SPOT", "Value": held}
        stub.add_response("list_service_quotas", {"Quotas": [own]}, asked)

    def found() -> dict[str, dict[str, str]]:
        return {one["name"]: one for one in json.loads(capsys.readouterr().out)["checks"]}

    listed(4.0)
    record_image(
        typed.store,
        PushedImage(uri=typed.image, tag="1", base="base@sha256:0", revision="abc", pushed_at="2026-11-16T00:00:00Z"),
    )
    typed("doctor", "cloud=sagemaker", "--json")
    checks = found()
    assert checks["quotas"]["text"] == "on demand: none; spot: 4 x ml.g5.xlarge"
    assert (checks["role"]["verdict"], checks["image"]["verdict"]) == ("ok", "ok")
    listed(0.0)
    trust = json.dumps(TRUST).replace("sagemaker.", "ec2.")
    typed.session.client("iam").update_assume_role_policy(RoleName="demo-node", PolicyDocument=trust)
    assert typed("doctor", "cloud=sagemaker", "--json") == 3
    checks = found()
    assert checks["quotas"]["cause"] == "quota" and "does not trust" in checks["role"]["text"]
    quota(stubbed, 1.0)
    typed("doctor", "cloud=sagemaker", "--plan", "plan.json", "--json")
    assert found()["quota"]["text"] == "1 x ml.g5.xlarge, spot: 1 of 1 are free (L-SPOT)"


RECIPES = [
    f"{model}-{machine}"
    for model in ("exaone-3.5-7.8b", "gemma-2-9b", "llama-2-13b", "llama-3.1-8b", "solar-10.7b")
    for machine in ("p4d", "p4de")
]
QUICK = ("llama-3.1-8b-p4d", "llama-2-13b-p4de")


@pytest.mark.parametrize(
    "recipe", [pytest.param(name, marks=() if name in QUICK else pytest.mark.slow) for name in RECIPES]
)
def test_a_recipe_of_eight_to_thirteen_billion_parameters_launches_with_one_command(
    recipe: str,
    typed: TypedSageMaker,
    stubbed: StubbedSession,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    kinds = ("p4d.24xlarge", "p4de.24xlarge")  # after `skytrain catalog refresh`; the figures are the test's own
    prices = tuple(
        Price(
            type=kind,
            region="us-east-2",
            market="on-demand",
            usd_per_hour_min=30.0,
            usd_per_hour_max=30.0,
            date="2026-11-16",
            source="a test",
        )
        for kind in kinds
    )
    monkeypatch.setenv("SKYTRAIN_CACHE", str(typed.folder / "cache"))
    save_catalog(replace(packaged_catalog(), of_services={"sagemaker_prices": prices}))
    stub, asked = stubbed.stub("service-quotas"), {"ServiceCode": "sagemaker"}
    machine = f"{recipe.rpartition('-')[2]}.24xlarge"
    held = {"QuotaName": f"ml.{machine} for training job usage", "QuotaCode": "L-P4", "Value": 2.0}
    stub.add_response("list_service_quotas", {"Quotas": [held]}, asked)
    words = [f"recipe={recipe}", "cloud=sagemaker", f"cloud.sagemaker.image={typed.image}", "budget.usd=3000"]
    choose = ["--instance", machine, "--nodes", "1", "--market", "on-demand", "--dry-run"]
    assert typed("launch", "train", *words, "cloud.sagemaker.usd_per_hour=30", *choose) == 0
    [*_, shown] = json.loads(capsys.readouterr().out)
    request = shown["parameters"]
    assert (request["ResourceConfig"]["InstanceType"], request["ResourceConfig"]["InstanceCount"]) == (
        f"ml.{machine}",
        1,
    )
    assert request["VpcConfig"]["Subnets"]
    assert request["StoppingCondition"]["MaxRuntimeInSeconds"] < 28 * 86400
    assert request["EnableManagedSpotTraining"] is False and not typed.jobs


def test_a_training_job_from_its_request_to_its_end(
    typed: TypedSageMaker, stubbed: StubbedSession, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(SageMakerResponse, "stop_training_job", stop_training_job, raising=False)
    for _ in range(2):
        quota(stubbed, 1.0)
    assert typed.launch("--dry-run") == 0
    [*role, shown] = json.loads(capsys.readouterr().out)
    assert shown["operation"] == "CreateTrainingJob" and shown["parameters"]["TrainingJobName"] == JOB
    assert [call["operation"] for call in role] == ["CreateRole", "AttachRolePolicy"]  # no machines of ours: no profile
    assert shown["parameters"]["RoleArn"].endswith(f":role/skytrain/us-east-2/demo/{role[0]['parameters']['RoleName']}")
    assert not typed.jobs and typed.store.list("runs") == []
    capsys.readouterr()

    assert typed.launch("--yes") == 0
    said = capsys.readouterr().out
    assert "1 x ml.g5.xlarge (spot)" in said and "$1.50 an hour at most" in said
    assert "skytrain stop gpt2-typed cloud=sagemaker" in said
    assert list(typed.jobs) == [JOB]
    [record] = launches_of(typed.store, "gpt2-typed")
    assert (record.target, record.groups[0].name, record.groups[0].usd_per_hour) == ("sagemaker", JOB, 1.5)
    script = typed.store.read("launches/gpt2-typed/00001/start.sh").decode()
    assert hashlib.sha256(script.encode()).hexdigest() in typed.jobs[JOB].algorithm_specification["ContainerEntrypoint"]
    configuration = typed.store.read("launches/gpt2-typed/00001/config.tar.gz")
    assert hashlib.sha256(configuration).hexdigest() in script
    assert "run=gpt2-typed budget.usd_per_hour=1.5000 --nodes 1 --processes 1 --launch 00001" in script

    typed.jobs[JOB].training_job_status = "InProgress"  # moto completes jobs at once
    quota(stubbed, 9.0)
    assert typed.launch("--yes") == 2
    assert "may not be complete yet" in capsys.readouterr().err
    assert typed("status", "gpt2-typed", "cloud=sagemaker") == 0
    said = capsys.readouterr().out
    assert JOB in said and "1 x ml.g5.xlarge" in said and "InProgress" in said

    assert typed("logs", "gpt2-typed", "cloud=sagemaker") == 0
    assert "its containers wrote nothing" in capsys.readouterr().out
    logged = typed.session.client("logs")
    logged.create_log_group(logGroupName=LOG_GROUP)
    logged.create_log_stream(logGroupName=LOG_GROUP, logStreamName=f"{JOB}/algo-1")
    at = {"logGroupName": LOG_GROUP, "logStreamName": f"{JOB}/algo-1"}
    events = [{"timestamp": int(time.time() * 1000) + number, "message": f"line {number}\n"} for number in range(3)]
    logged.put_log_events(**at, logEvents=events)
    assert typed("logs", "gpt2-typed", "cloud=sagemaker", "--lines", "2") == 0
    assert capsys.readouterr().out == "[algo-1] line 1\n[algo-1] line 2\n"

    # A machine of another run says that this job is its own: that run's `stop` ends nothing of it.
    record = json.loads(typed.store.read("runs/gpt2-typed/launches/00001.json"))
    typed.store.write("runs/evil/launches/00001.json", json.dumps({**record, "run": "evil"}).encode())
    assert typed("stop", "evil", "cloud=sagemaker", "--yes") == 0
    assert typed.jobs[JOB].training_job_status != "Stopped" and JOB not in capsys.readouterr().err

    assert typed("stop", "gpt2-typed", "cloud=sagemaker", "--dry-run") == 0
    [*_, asked] = json.loads(capsys.readouterr().out)
    assert (asked["operation"], asked["parameters"]) == ("StopTrainingJob", {"TrainingJobName": JOB})
    assert typed("stop", "gpt2-typed", "cloud=sagemaker", "--yes") == 0
    said = capsys.readouterr()
    assert f"job {JOB} is stopped" in said.err and "it had not begun to train" in said.out
    assert typed.jobs[JOB].training_job_status == "Stopped"
    assert typed("status", "gpt2-typed", "cloud=sagemaker", "--json") == 0
    assert json.loads(capsys.readouterr().out)["jobs"][0]["state"] == "Stopped"


def stop_training_job(response: Any) -> str:
    """What moto does not implement."""
    name = json.loads(response.body)["TrainingJobName"]
    sagemaker_backends["123456789012"]["us-east-2"].training_jobs[name].training_job_status = "Stopped"
    return "{}"


def test_what_cannot_work_is_refused_before_anything_is_created(
    typed: TypedSageMaker, stubbed: StubbedSession, capsys: pytest.CaptureFixture[str]
) -> None:
    quota(stubbed, 0.0)
    assert typed.launch("--yes") == 4
    said = capsys.readouterr().err
    assert f"the quota '{QUOTA}' is 0" in said and "request 1 or more for L-SPOT" in said

    other = typed.image.partition("@")[0] + "@sha256:" + "1" * 64
    quota(stubbed, 1.0)
    assert typed.launch("--yes", f"cloud.sagemaker.image={other}") == 3
    assert "images has no image sha256:1111" in capsys.readouterr().err
    quota(stubbed, 1.0)
    assert typed.launch("--yes", f"cloud.sagemaker.image={typed.image.replace('us-east-2', 'eu-west-1')}") == 3
    assert "SageMaker pulls images of its own region" in capsys.readouterr().err
    quota(stubbed, 1.0)
    assert typed.launch("--yes", "cloud.sagemaker.warm_pool=10m") == 2
    assert "warm_pool is set, and the plan's machines are spot" in capsys.readouterr().err

    for_ec2 = json.dumps(TRUST).replace("sagemaker", "ec2")
    typed.session.client("iam").update_assume_role_policy(RoleName="demo-node", PolicyDocument=for_ec2)
    assert typed.launch("--yes") == 3
    assert "the role demo-node does not trust sagemaker.amazonaws.com" in capsys.readouterr().err
    assert typed("launch", "prepare", "cloud=sagemaker") == 2
    assert typed.launch("--smoke", "20M") == 2
    assert not typed.jobs and typed.store.list("runs") == []


def test_a_job_whose_creation_failed_is_stopped_if_it_exists_and_its_launch_counts_as_failed(
    typed: TypedSageMaker, stubbed: StubbedSession, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(SageMakerResponse, "stop_training_job", stop_training_job, raising=False)
    perform = typed.session.perform

    def lost(call: Call, region: str | None = None) -> dict[str, Any]:
        answer = perform(call, region)
        if call.operation == "CreateTrainingJob":
            typed.jobs[JOB].training_job_status = "InProgress"
            raise CloudError("the answer was lost", fix="try again", cause="capacity")
        return answer

    monkeypatch.setattr(typed.session, "perform", lost)
    quota(stubbed, 1.0)
    assert typed.launch("--yes") == 5
    assert "the answer was lost" in capsys.readouterr().err
    assert typed.jobs[JOB].training_job_status == "Stopped"
    assert [record.failed for record in launches_of(typed.store, "gpt2-typed")] == [True]


def test_a_job_of_the_same_run_in_another_store_keeps_its_name_and_is_never_stopped(
    typed: TypedSageMaker, stubbed: StubbedSession, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(SageMakerResponse, "stop_training_job", stop_training_job, raising=False)
    for _ in range(3):
        quota(stubbed, 3.0)
    assert typed.launch("--yes", "--no-follow") == 0
    typed.jobs[JOB].training_job_status = "InProgress"
    typed.store = open_store(str(typed.folder / "other"))
    store_manifests(typed.store, compose().config)
    assert typed.launch("--yes", "--no-follow") == 0
    assert [record.id for record in launches_of(typed.store, "gpt2-typed")] == ["00002"]

    def taken(call: Call, region: str | None = None) -> dict[str, Any]:
        if call.operation == "DescribeTrainingJob":  # it is created between this and the request
            raise CloudError("no such job", fix="", code="ValidationException")
        if call.operation == "CreateTrainingJob":
            raise CloudError("names must be unique", fix="try again", code="ResourceInUse")
        return perform(call, region)

    perform = typed.session.perform
    monkeypatch.setattr(typed.session, "perform", taken)
    typed.store = open_store(str(typed.folder / "third"))
    store_manifests(typed.store, compose().config)
    assert typed.launch("--yes", "--no-follow") == 3
    assert typed.jobs[JOB].training_job_status == "InProgress"


def test_follow_watches_a_job_until_it_is_gone(
    typed: TypedSageMaker, stubbed: StubbedSession, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(screen, "pause", lambda _: None)
    quota(stubbed, 1.0)
    assert typed.launch("--yes", "--follow") == 12  # moto completes the job at once, and nothing has trained
    assert "its job has ended; see skytrain logs gpt2-typed cloud=sagemaker (exit code 12)" in capsys.readouterr().out


def test_a_machine_costs_what_the_pricing_api_says_for_training(ground: Ground) -> None:
    client = ground.session.client("pricing", "us-east-1")

    def product(usd: str, unit: str = "Hrs") -> str:
        dimension = {"unit": unit, "pricePerUnit": {"USD": usd}}
        return json.dumps({"terms": {"OnDemand": {"a": {"priceDimensions": {"b": dimension}}}}})

    fields = {"instanceName": "ml.g5.xlarge", "regionCode": "us-east-2", "component": "Training"}
    filters = [{"Type": "TERM_MATCH", "Field": field, "Value": value} for field, value in fields.items()]
    asked = {"ServiceCode": "AmazonSageMaker", "Filters": filters}
    with Stubber(client) as stub:
        stub.add_response("get_products", {"PriceList": [product("0.0"), product("1.408")]}, asked)
        assert on_demand_usd(ground.session, "ml.g5.xlarge") == 1.408
        stub.add_response("get_products", {"PriceList": []}, asked)
        assert on_demand_usd(ground.session, "ml.g5.xlarge") is None


def test_restarts_of_a_job_are_counted_by_sagemaker_and_end_with_what_is_left_of_the_budget(
    typed: TypedSageMaker, stubbed: StubbedSession, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    record_spend(typed.store, "gpt2-typed", 3.0)
    quota(stubbed, 1.0)
    assert typed.launch("budget.usd=4.5", "--dry-run") == 0
    [*_, shown] = json.loads(capsys.readouterr().out)
    limits = shown["parameters"]["StoppingCondition"]
    assert limits["MaxRuntimeInSeconds"] == 3600 + 60  # $1.50 at $1.50 an hour, of all attempts together
    assert shown["parameters"]["RetryStrategy"] == {"MaximumRetryAttempts": 10}
    quota(stubbed, 1.0)
    assert typed.launch("budget.usd=3", "--dry-run") == 2
    assert "nothing is left to rent machines with" in capsys.readouterr().err
    quota(stubbed, 1.0)
    assert typed.launch("budget.usd=9", "--yes") == 0
    typed.jobs[JOB].billable_time_in_seconds = 4 * 3600  # its containers died before they recorded anything
    monkeypatch.setattr(launch_limits, "BEGIN_SECONDS", 0)
    quota(stubbed, 1.0)
    assert typed.launch("budget.usd=6", "--dry-run") == 2
    assert "run gpt2-typed has cost $6.00 already" in capsys.readouterr().err
