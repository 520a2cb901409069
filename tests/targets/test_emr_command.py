"""`skytrain launch prepare` on EMR, status, logs and stop as they are typed, against a local control plane."""

from __future__ import annotations

import gzip
import hashlib
import json
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from moto.emr.models import emr_backends
from moto.emrserverless.models import emrserverless_backends

from skytrain.aws import KINDS, AwsSession, Call, CloudError, scan_account
from skytrain.cli.main import main
from skytrain.planning.catalog import packaged_catalog
from skytrain.runs import launches_of
from skytrain.targets import limits as launch_limits
from skytrain.targets.emr import launch as launch_emr
from skytrain.targets.emr.checks import emr_service
from skytrain.targets.emr.costs import node_price
from skytrain.targets.emr.environment import PackedEnvironment
from skytrain.targets.emr.jobs import CHUNK_BYTES, LOG_CHUNKS, _end_of_log

from .conftest import StubbedSession
from .ground import Ground
from .test_checks import quotas
from .test_launch_command import STANDARD_ON_DEMAND, STANDARD_SPOT, Typed


def test_a_log_that_unpacks_without_end_or_is_damaged_is_cut_and_said_to_be() -> None:
    long = gzip.compress(b"x" * (CHUNK_BYTES * (LOG_CHUNKS + 8)) + b"\nthe end")
    assert len(_end_of_log(long)) <= CHUNK_BYTES * LOG_CHUNKS and _end_of_log(long).endswith(b"the end")
    for damaged in (b"no gzip", gzip.compress(b"first line\n" * 100)[:-12], b""):
        assert b"Traceback" not in _end_of_log(damaged)
    assert b"damaged" in _end_of_log(b"no gzip")


WORDS = ["prepare", "data=python-docs", "data.target_tokens=1B", "run=corpus"]
JOB = "skytrain-demo-corpus-00001"
LINKED = ("AWSServiceRoleForAmazonEMRServerless", "AWSServiceRoleForEMRCleanup")


def trust(*services: str) -> str:
    statement = {"Effect": "Allow", "Action": "sts:AssumeRole", "Principal": {"Service": list(services)}}
    return json.dumps({"Version": "2012-10-17", "Statement": [statement]})


@pytest.mark.parametrize("region, end", [("us-east-2", ""), ("us-gov-west-1", ""), ("cn-northwest-1", ".cn")])
def test_roles_of_clusters_trust_emr_by_its_name_in_their_partition(region: str, end: str) -> None:
    assert emr_service(region) == f"elasticmapreduce.amazonaws.com{end}"


class TypedEmr(Typed):
    """A user's folder after `skytrain cloud init` with EMR switched on."""

    def __init__(self, folder: Path, ground: Ground, monkeypatch: pytest.MonkeyPatch) -> None:
        super().__init__(folder, ground, monkeypatch)
        monkeypatch.setattr(launch_limits, "BEGIN_SECONDS", 0)
        monkeypatch.setattr(launch_emr, "pack_environment", self._pack)
        self.session, self.packed = ground.session, 0
        iam = self.session.client("iam")
        service = iam.create_role(RoleName="demo-emr", AssumeRolePolicyDocument=trust("elasticmapreduce.amazonaws.com"))
        iam.update_assume_role_policy(
            RoleName="demo-prepare", PolicyDocument=trust("ec2.amazonaws.com", "emr-serverless.amazonaws.com")
        )
        for name in LINKED:
            iam.create_role(RoleName=name, AssumeRolePolicyDocument=trust("x"))
        path = folder / "cloud/aws.yaml"
        prepare = "arn:aws:iam::123456789012:role/demo-prepare"
        path.write_text(
            path.read_text().replace(
                "  roles:\n", f"  roles:\n    prepare: {prepare}\n    emr_service: {service['Role']['Arn']}\n"
            )
            + f"  emr_service_group: {ground.group}\n"
        )

    def _pack(self, store: Any, contents: Any, reporter: Any) -> PackedEnvironment:
        self.packed += 1
        return launch_emr.environment_of(contents)

    def __call__(self, *words: str) -> int:
        self._monkeypatch.setattr(sys, "argv", ["skytrain", *words])
        with pytest.raises(SystemExit) as ended:
            main()
        return int(ended.value.code or 0)

    def launch(self, *words: str) -> int:
        return self("launch", *WORDS, *words)

    @property
    def jobs(self) -> list[Any]:
        runs = emrserverless_backends["123456789012"]["us-east-2"].job_runs
        return [job for found in runs.values() for job in found]

    @property
    def clusters(self) -> dict[str, Any]:
        found: dict[str, Any] = emr_backends["123456789012"]["us-east-2"].clusters
        return found


@pytest.fixture
def typed(tmp_path: Path, ground: Ground, monkeypatch: pytest.MonkeyPatch) -> TypedEmr:
    return TypedEmr(tmp_path, ground, monkeypatch)


def serverless_quota(stubbed: StubbedSession, value: float, times: int = 1) -> None:
    stub, asked = stubbed.stub("service-quotas"), {"ServiceCode": "emr-serverless"}
    for _ in range(times):
        found = [{"QuotaName": "Max concurrent vCPUs per account", "QuotaCode": "L-D05C8A75", "Value": value}]
        stub.add_response("list_service_quotas", {"Quotas": found}, asked)
        stub.add_response("list_aws_default_service_quotas", {"Quotas": []}, asked)


def test_a_serverless_job_from_its_request_to_its_end_and_again(
    typed: TypedEmr, stubbed: StubbedSession, capsys: pytest.CaptureFixture[str]
) -> None:
    serverless_quota(stubbed, 200.0, 5)
    assert typed.launch("cloud=emr-serverless", "--dry-run") == 0
    said = capsys.readouterr()
    *role, create, start = json.loads(said.out)
    assert (create["operation"], start["operation"]) == ("CreateApplication", "StartJobRun")
    assert [call["operation"] for call in role] == ["CreateRole", "AttachRolePolicy"]
    assert start["parameters"]["executionRoleArn"].endswith(role[0]["parameters"]["RoleName"])
    assert "$5.30 an hour" in said.err and "costs" in said.err
    assert not typed.jobs and typed.store.list("runs") == []

    assert typed.launch("cloud=emr-serverless", "--yes") == 0
    assert "skytrain stop corpus cloud=emr-serverless" in capsys.readouterr().out
    [job] = typed.jobs
    [record] = launches_of(typed.store, "corpus")
    assert (record.target, record.verb, record.groups[0].name, job.name) == ("emr-serverless", "prepare", JOB, JOB)
    folder = "launches/corpus/00001"
    assert typed.store.exists(f"{folder}/prepare.py") and typed.store.exists(f"{folder}/config.tar.gz")

    job.state = "RUNNING"  # moto's jobs succeed at once
    assert typed.launch("cloud=emr-serverless", "--yes") == 2
    assert "is not over" in capsys.readouterr().err and len(typed.jobs) == 1
    assert typed("status", "corpus", "cloud=emr-serverless") == 0
    said_now = capsys.readouterr().out
    assert JOB in said_now and "RUNNING" in said_now and job.id in said_now

    job.state, job.state_details = "FAILED", "Job failed. ExitCode: 2. data.source: no such bucket"
    job.billed_resource_utilization = {"vCPUHour": 10.0, "memoryGBHour": 40.0, "storageGBHour": 0.0}
    assert typed("status", "corpus", "cloud=emr-serverless", "--json") == 0
    [shown] = json.loads(capsys.readouterr().out)["jobs"]
    assert shown["state"] == "FAILED" and "no such bucket" in shown["reason"]
    assert typed("status", "corpus", "cloud=emr-serverless") == 0
    assert "0.76" in capsys.readouterr().out  # 10 x 0.052624 + 40 x 0.005786
    assert typed("costs", "corpus", "cloud=emr-serverless") == 0
    said_now = capsys.readouterr().out
    assert "0.76" in said_now and "billed: 10.00 vCPU-hours, 40.00 GB-hours" in said_now
    assert typed("costs", "corpus", f"store.root={typed.store.root}") == 0  # without an account to ask
    assert "1 launch on EMR" in capsys.readouterr().out

    assert typed.launch("cloud=emr-serverless", "--yes", "budget.usd=1.20") == 2  # 44 cents pay for 5 minutes
    assert "budget.usd=1.2, of which $0.76 are spent, pays for" in capsys.readouterr().err and len(typed.jobs) == 1
    assert typed.launch("cloud=emr-serverless", "--yes") == 0  # a failed job is launched again, with the same words
    assert [one.name for one in typed.jobs] == [JOB, "skytrain-demo-corpus-00002"]
    first, second = (one.job_driver["sparkSubmit"] for one in typed.jobs)
    assert first["entryPointArguments"] == second["entryPointArguments"] and typed.packed == 2


def test_logs_and_stop_of_a_serverless_job(
    typed: TypedEmr, stubbed: StubbedSession, capsys: pytest.CaptureFixture[str]
) -> None:
    serverless_quota(stubbed, 200.0)
    assert typed.launch("cloud=emr-serverless", "--yes") == 0
    [job] = typed.jobs
    job.state = "RUNNING"
    capsys.readouterr()
    assert typed("logs", "corpus", "cloud=emr-serverless") == 0
    assert "has written nothing yet" in capsys.readouterr().out
    prefix = f"runs/corpus/launches/00001/logs/applications/{job.application_id}/jobs/{job.id}"
    typed.store.write(f"{prefix}/SPARK_DRIVER/stderr.gz", gzip.compress(b"clean 3 of 40\nclean 40 of 40\n"))
    typed.store.write(f"{prefix}/SPARK_EXECUTOR/1/stderr.gz", gzip.compress(b"not the driver\n"))
    assert typed("logs", "corpus", "cloud=emr-serverless", "--lines", "1") == 0
    assert capsys.readouterr().out.splitlines() == ["clean 40 of 40", f"{JOB}: RUNNING"]

    assert typed("stop", "corpus", "cloud=emr-serverless", "--dry-run") == 0
    [shown] = json.loads(capsys.readouterr().out)
    assert shown["operation"] == "CancelJobRun" and job.state == "RUNNING"
    assert typed("stop", "corpus", "cloud=emr-serverless", "--yes") == 0
    assert job.state in ("CANCELLED", "CANCELLING")
    capsys.readouterr()
    job.state = "CANCELLING"
    assert typed("stop", "corpus", "cloud=emr-serverless", "--dry-run") == 0
    assert json.loads(capsys.readouterr().out) == []
    assert typed("stop", "corpus", "cloud=emr-serverless", "--yes", "--json") == 0
    said = capsys.readouterr()
    assert json.loads(said.out) == {"run": "corpus", "stopped_jobs": 0, "ending_jobs": 1}
    assert "is being stopped already: CANCELLING" in said.err and job.state == "CANCELLING"
    job.state = "CANCELLED"
    assert typed("stop", "corpus", "cloud=emr-serverless", "--yes") == 0
    assert "nothing to stop" in capsys.readouterr().out
    assert typed("stop", "corpse", "cloud=emr-serverless", "--yes") == 2  # a typing error must not look like success
    assert "was not launched on EMR" in capsys.readouterr().err


def test_a_cluster_from_its_request_to_its_end(
    typed: TypedEmr, stubbed: StubbedSession, capsys: pytest.CaptureFixture[str]
) -> None:
    quotas(stubbed, *((code, 64.0) for _ in range(2) for code in (STANDARD_ON_DEMAND, STANDARD_SPOT)))
    assert typed.launch("cloud=emr", "--yes") == 0
    said = capsys.readouterr()
    assert "m7i.xlarge + 2 x r7i.xlarge + 4 x r7i.xlarge spot" in said.out and "are EMR's" in said.out
    [cluster] = typed.clusters.values()
    assert cluster.name == JOB
    for name in ("bootstrap.sh", "launch.tar.gz"):
        assert typed.store.exists(f"launches/corpus/00001/{name}")
    sent = hashlib.sha256(typed.store.read("launches/corpus/00001/launch.tar.gz")).hexdigest()
    assert cluster.bootstrap_actions[0].args[4] == sent
    assert typed.launch("cloud=emr", "--yes") == 2
    assert "is not over" in capsys.readouterr().err and len(typed.clusters) == 1
    assert typed("status", "corpus", "cloud=emr") == 0
    assert cluster.id in capsys.readouterr().out
    step = cluster.steps[0]
    typed.store.write(
        f"runs/corpus/launches/00001/logs/{cluster.id}/steps/{step.id}/stderr.gz", gzip.compress(b"pairs 1 of 9\n")
    )
    assert typed("logs", "corpus", "cloud=emr") == 0
    assert "pairs 1 of 9" in capsys.readouterr().out
    primary, core, task = cluster.instance_groups
    for group, hours in ((primary, 3), (core, 3), (task, 2)):
        group.creation_date_time = datetime.now(UTC) - timedelta(hours=4)
        group.end_date_time = group.creation_date_time + timedelta(hours=hours)
    assert typed("costs", "corpus", "cloud=emr", "--json") == 0
    [job] = json.loads(capsys.readouterr().out)["jobs"]
    one, two, three = (
        node_price(kind, "us-east-2", market, packaged_catalog())
        for kind, market in (("m7i.xlarge", "on-demand"), ("r7i.xlarge", "on-demand"), ("r7i.xlarge", "spot"))
    )
    assert one and two and three
    assert job["usd"] == pytest.approx(3 * one.usd + 2 * 3 * two.usd + 4 * 2 * three.usd, abs=0.01)
    assert "17.00 node-hours" in job["basis"]
    record = json.loads(typed.store.read("runs/corpus/launches/00001.json"))
    typed.store.write("runs/evil/launches/00001.json", json.dumps({**record, "run": "evil"}).encode())
    assert typed("stop", "evil", "cloud=emr", "--yes") == 2  # its machines say that this cluster is theirs
    assert cluster.state not in ("TERMINATING", "TERMINATED")
    assert typed("stop", "corpus", "cloud=emr", "--yes") == 0
    assert cluster.state.startswith("TERMINAT")
    cluster.state = "TERMINATING"
    capsys.readouterr()
    assert typed("stop", "corpus", "cloud=emr", "--yes") == 0
    assert "is being stopped already: TERMINATING" in capsys.readouterr().err


def test_what_is_missing_is_told_before_anything_is_created(
    typed: TypedEmr, stubbed: StubbedSession, capsys: pytest.CaptureFixture[str]
) -> None:
    serverless_quota(stubbed, 16.0)
    assert typed.launch("cloud=emr-serverless", "--yes") == 4
    said = capsys.readouterr().err
    assert "68 vCPUs" in said and "is 16" in said and "cloud.emr.executors=3" in said
    iam = typed.session.client("iam")
    iam.delete_role(RoleName=LINKED[0])
    assert typed.launch("cloud=emr-serverless", "--yes") == 3
    assert "create-service-linked-role --aws-service-name ops.emr-serverless.amazonaws.com" in capsys.readouterr().err
    iam.update_assume_role_policy(RoleName="demo-prepare", PolicyDocument=trust("ec2.amazonaws.com"))
    assert typed.launch("cloud=emr-serverless", "--yes") == 3
    assert "does not trust emr-serverless.amazonaws.com" in capsys.readouterr().err
    assert typed.launch("cloud=emr-serverless", "budget.usd=0.5", "--yes") == 2
    assert "pays for" in capsys.readouterr().err
    assert typed("launch", "train", "cloud=emr", "--yes") == 2
    assert "only data is prepared there" in capsys.readouterr().err
    refused = {
        "run='my corpus'": "run=my-corpus",
        "spark.master=local[2]": "EMR decides where Spark runs",
        "cloud.emr.release='emr-7.11 x'": "releases 7.1 to 7.x",
        "cloud.kms_key=alias/mine": "EMR takes the ARN of a key",
    }
    for word, why in refused.items():
        assert typed.launch("cloud=emr-serverless", word, "--yes") == 2
        assert why in capsys.readouterr().err
    assert typed.launch("cloud=emr", "cloud.emr.executors=4", "cloud.emr.executor_gb=64", "--yes") == 2
    assert "holds no executor" in capsys.readouterr().err
    tokens = ["launch", "prepare", "data=parquet-tokens", "data.source.paths=s3://b/*", "data.name=x"]
    assert typed(*tokens, "cloud=emr-serverless", "--yes") == 2
    assert "has no documents" in capsys.readouterr().err
    assert not typed.jobs and not typed.clusters and typed.store.list("runs") == [] and typed.packed == 0


def test_doctor_checks_what_a_job_on_emr_needs_and_no_machines_with_gpus(
    typed: TypedEmr, stubbed: StubbedSession, capsys: pytest.CaptureFixture[str]
) -> None:
    serverless_quota(stubbed, 200.0)
    typed("doctor", "cloud=emr-serverless", "--json")
    found = {one["name"]: one["verdict"] for one in json.loads(capsys.readouterr().out)["checks"]}
    assert [found[name] for name in ("store", "role", "service-linked role", "quota")] == ["ok"] * 4
    assert not {"image", "trial launch", "capacity block"} & set(found)


ERRORS = {
    "AccessDeniedException": (11, "the role needs the policy statement"),
    "ThrottlingException": (5, "run the same command again in a minute"),
    "ServiceQuotaExceededException": (4, "request a higher value of the quota"),
}


@pytest.mark.parametrize("code", ERRORS)
def test_a_refusal_of_emr_leaves_no_job_and_says_what_to_do(
    code: str,
    typed: TypedEmr,
    stubbed: StubbedSession,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    serverless_quota(stubbed, 200.0)
    perform = AwsSession.perform

    def refused(self: AwsSession, call: Call, region: str | None = None) -> dict[str, Any]:
        if call.operation == "StartJobRun":
            from botocore.exceptions import ClientError

            from skytrain.aws.errors import cloud_error

            raise cloud_error(ClientError({"Error": {"Code": code, "Message": "said AWS"}}, "StartJobRun"), call)
        return perform(self, call, region)

    monkeypatch.setattr(AwsSession, "perform", refused)
    exit_code, said = ERRORS[code]
    assert typed.launch("cloud=emr-serverless", "--yes") == exit_code
    assert said in capsys.readouterr().err
    [record] = launches_of(typed.store, "corpus")
    assert record.failed and not typed.jobs


def test_what_others_have_on_emr_is_no_resource_and_hides_none_of_ours(
    typed: TypedEmr, stubbed: StubbedSession, account: AwsSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    serverless_quota(stubbed, 200.0)
    assert typed.launch("cloud=emr-serverless", "--yes") == 0
    client = typed.session.client("emr-serverless")
    for name in (JOB, "theirs"):  # an application of another team may even have our name
        made = client.create_application(name=name, releaseLabel="emr-7.11.0", type="SPARK", clientToken=name)
        role = "arn:aws:iam::123456789012:role/theirs"
        client.start_job_run(applicationId=made["applicationId"], clientToken=name, executionRoleArn=role, name=name)
    for job in typed.jobs:
        job.state = "RUNNING"
    assert typed("stop", "corpus", "cloud=emr-serverless", "--yes") == 0
    assert [job.state for job in typed.jobs] == ["CANCELLED", "RUNNING", "RUNNING"]
    perform = AwsSession.perform
    others = [one["id"] for one in client.list_applications()["applications"] if one["name"] == "theirs"]

    def refused(self: AwsSession, call: Call, region: str | None = None) -> dict[str, Any]:
        if call.operation == "GetApplication" and call.parameters["applicationId"] in others:
            raise CloudError("denied", fix="ask", code="AccessDeniedException")
        return perform(self, call, region)

    monkeypatch.setattr(AwsSession, "perform", refused)
    found = scan_account(account, ["us-east-2"], [KINDS["EMR application"], KINDS["EMR cluster"]], "demo")
    [one] = [each for each in found.resources if each.tags.run == "corpus"]
    assert one.id == typed.jobs[0].application_id and [each.problem for each in found.problems] == ["denied"]


def test_gc_cancels_the_jobs_of_an_application_before_it_is_deleted(
    typed: TypedEmr, stubbed: StubbedSession, account: AwsSession
) -> None:
    serverless_quota(stubbed, 200.0)
    assert typed.launch("cloud=emr-serverless", "--yes") == 0
    [job] = typed.jobs
    job.state = "RUNNING"
    kind = KINDS["EMR application"]
    [found] = [one for one in kind.find(account, "us-east-2") if one.tags.run == "corpus"]
    assert [call.operation for call in kind.delete(found)] == ["CancelJobRun", "StopApplication", "DeleteApplication"]
    job.state = "SUCCESS"
    [found] = [one for one in kind.find(account, "us-east-2") if one.tags.run == "corpus"]
    assert [call.operation for call in kind.delete(found)] == ["StopApplication", "DeleteApplication"]
