"""EMR: the requests of two jobs of each kind, what is refused, and the scripts that the cluster's nodes run."""

from __future__ import annotations

import hashlib
import io
import json
import os
import subprocess
import tarfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from skytrain.aws import Call, Tags, render_calls
from skytrain.config import SkytrainError
from skytrain.targets.emr.requests import (
    BOOTSTRAP,
    FOLDER,
    INSTANCE,
    EmrJobSpec,
    EmrPlaces,
    cluster_call,
    cluster_subnet,
    serverless_calls,
    submit_script,
)
from tests.support.settings import CLOUD_DEFAULTS

from .test_ec2 import GOLDEN, NOW, account

PREPARE = "arn:aws:iam::123456789012:role/skytrain-pile-us-east-2-prepare"
SERVICE = "arn:aws:iam::123456789012:role/skytrain-pile-us-east-2-emr-service"
LAUNCH = "s3://bucket/pile/runs/prepare-crawl/launches/00001"
INPUTS = "s3://bucket/pile/launches/prepare-crawl/00001"
PLACES = EmrPlaces(
    "s3://bucket/pile/bundles/0123456789abcdef-spark/environment.tar.gz", f"{INPUTS}/prepare.py",
    f"{INPUTS}/config.tar.gz", f"{LAUNCH}/logs/",
)  # fmt: skip
SMALL: dict[str, Any] = {"executors": 4, "executor_cores": 2, "executor_gb": 8, "disk_gb": 20, "retries": 0}
IMAGE = "123456789012.dkr.ecr.us-east-2.amazonaws.com/spark:7.11.0"
NOTEBOOKS: dict[str, Any] = {
    "root_disk_gb": 60,
    "applications": ["Spark", "JupyterHub"],
    "keep_alive": True,
    "image": "ami-0123456789abcdef0",
}
NODES: dict[str, Any] = {"core": "r5.xlarge", "core_nodes": 3, "task_nodes": 0}


def job_of(executors: int = 16, **settings: Any) -> EmrJobSpec:
    cloud = account()
    cloud = replace(
        cloud,
        emr=replace(CLOUD_DEFAULTS.emr, **{"executors": executors, **settings}),
        roles=replace(cloud.roles, prepare=PREPARE, emr_service=SERVICE),
        prepare_profile="skytrain-pile-us-east-2-prepare",
        emr_service_group="sg-0emr",
        emr_security="skytrain-pile",
    )
    overrides = ("data=parquet", "data.source.paths=s3://crawl/with space/*.parquet")
    return EmrJobSpec(
        run="prepare-crawl",
        launch="00001",
        overrides=overrides,
        tags=Tags("pile", "ada"),
        cloud=cloud,
        places=PLACES,
        launched_at=NOW,
        timeout_seconds=43200,
        executors=cloud.emr.executors or executors,
    )


def cluster(job: EmrJobSpec) -> Call:
    return cluster_call(job, "subnet-1", f"{INPUTS}/bootstrap.sh", f"{INPUTS}/launch.tar.gz")


REQUESTS = {
    "emr-serverless-16-executors": lambda: serverless_calls(job_of()),
    "emr-serverless-small": lambda: serverless_calls(job_of(**SMALL)),
    "emr-spot-task-nodes": lambda: [cluster(job_of(6))],
    "emr-three-core-nodes": lambda: [cluster(job_of(3, **NODES))],
    "emr-serverless-own-image": lambda: serverless_calls(job_of(**SMALL, image=IMAGE)),
    "emr-notebooks": lambda: [cluster(job_of(3, **NODES, **NOTEBOOKS))],
}


@pytest.mark.parametrize("name", REQUESTS)
def test_the_requests_of_a_job_are_these(name: str) -> None:
    text = render_calls(REQUESTS[name]()) + "\n"
    assert text == Path(GOLDEN / f"{name}.json").read_text()


def test_the_application_can_hold_the_driver_and_all_executors_and_no_more() -> None:
    create, start = serverless_calls(job_of(10, executor_cores=8, executor_gb=32))
    assert create.parameters["maximumCapacity"] == {"cpu": "88 vCPU", "memory": "352 GB", "disk": "1100 GB"}
    options = start.parameters["jobDriver"]["sparkSubmit"]["sparkSubmitParameters"]
    assert "--conf spark.executor.memory=12g --conf spark.executor.memoryOverhead=20g" in options
    assert "--conf spark.dynamicAllocation.maxExecutors=10" in options
    assert "--conf spark.default.parallelism=80" in options


def test_a_repeated_request_has_the_same_token_and_another_launch_has_another() -> None:
    one, again = serverless_calls(job_of()), serverless_calls(job_of())
    other = serverless_calls(replace(job_of(), launch="00002"))
    for number in range(2):
        tokens = [calls[number].body()["clientToken"] for calls in (one, again, other)]
        assert tokens[0] == tokens[1] != tokens[2]


REFUSED = {
    "releases 7.1 to 7.x": {"release": "emr-6.15.0"},
    "which have Python 3.11": {"release": "emr-7.0.0"},
    "too little for 4 cores": {"executor_gb": 7},
    "workers of EMR Serverless have 1, 2, 4, 8, 16": {"executor_cores": 3},
    "a worker with 4 cores has 8 to 30 GB": {"executor_gb": 64},
    "has 16 to 60 GB in steps of 4": {"executor_cores": 8, "executor_gb": 30},
    "20 to 200 GB": {"disk_gb": 500},
    "runs Spark jobs only": {"applications": ["Spark", "JupyterHub"]},
    "keep_alive=True: EMR Serverless": {"keep_alive": True},
    "takes an image of ECR": {"image": "ami-0123456789abcdef0"},
}


@pytest.mark.parametrize("said", REFUSED)
def test_what_emr_serverless_does_not_have_is_refused(said: str) -> None:
    with pytest.raises(SkytrainError, match=said):
        serverless_calls(job_of(**REFUSED[said]))


def test_emr_serverless_takes_no_letters_outside_ascii_in_tags() -> None:
    job = job_of()
    with pytest.raises(SkytrainError, match=r"'Zoë' cannot be the tag skytrain:owner on EMR Serverless"):
        serverless_calls(replace(job, tags=replace(job.tags, owner="Zoë", checked=True)))


@pytest.mark.parametrize(
    "key", ["alias/mine", "1234abcd", "arn:aws:kms:us-east-2:123456789012:alias/mine", "arn:aws:s3:::b"]
)
def test_a_key_that_emr_does_not_take_is_refused_with_an_example(key: str) -> None:
    job = job_of()
    wrong = replace(job, cloud=replace(job.cloud, kms_key=key))
    for request in (serverless_calls, cluster):
        with pytest.raises(SkytrainError, match="EMR takes the ARN of a key"):
            request(wrong)


def test_a_node_has_as_many_volumes_as_its_disk_needs() -> None:
    """EMR's API takes volumes of at most 1024 GiB."""
    for disk, volumes, size in ((10, 1, 10), (1024, 1, 1024), (1025, 2, 513), (16384, 16, 1024)):
        groups = cluster(job_of(disk_gb=disk)).parameters["Instances"]["InstanceGroups"]
        [block] = groups[1]["EbsConfiguration"]["EbsBlockDeviceConfigs"]
        assert (block["VolumesPerInstance"], block["VolumeSpecification"]["SizeInGB"]) == (volumes, size)
    for disk in (9, 16385):
        with pytest.raises(SkytrainError, match="a node of EMR has 10 to 16384 GB"):
            cluster(job_of(disk_gb=disk))


@pytest.mark.parametrize(
    ("said", "wrong"),
    [
        ("did you mean JupyterHub", {"applications": ["Spark", "Jupyterhub"]}),
        ("needs Spark\n.*Spark, JupyterHub", {"applications": ["JupyterHub"]}),
        ("takes the id of an AMI", {"image": IMAGE}),
    ],
)
def test_what_a_cluster_does_not_have_is_refused(said: str, wrong: dict[str, Any]) -> None:
    with pytest.raises(SkytrainError, match=said):
        cluster(job_of(**wrong))


def test_an_account_without_emr_is_told_what_to_apply() -> None:
    job = job_of()
    without = replace(job, cloud=replace(job.cloud, roles=replace(job.cloud.roles, prepare=None)))
    with pytest.raises(SkytrainError, match=r"cloud.roles.prepare is not set[\s\S]*emr = true"):
        serverless_calls(without)
    with pytest.raises(SkytrainError, match=r"cloud\.emr_service_group is not set"):
        cluster(replace(job, cloud=replace(job.cloud, emr_service_group=None)))


def test_a_cluster_starts_where_all_its_types_are_sold() -> None:
    job = job_of(task="r5.xlarge")
    subnets = replace(job.cloud.subnets, private={"us-east-2a": "subnet-a", "us-east-2b": "subnet-b"}, nodes="private")
    job = replace(job, cloud=replace(job.cloud, subnets=subnets))
    sold = {"m7i.xlarge": {"us-east-2a", "us-east-2b"}, "r7i.xlarge": {"us-east-2b"}, "r5.xlarge": {"us-east-2b"}}
    assert cluster_subnet(job, sold) == "subnet-b"
    with pytest.raises(SkytrainError, match="no zone with a private subnet sells all of"):
        cluster_subnet(job, {**sold, "r5.xlarge": {"us-east-2a"}})


def run_submit(folder: Path, job: EmrJobSpec, codes: str) -> tuple[int, list[str]]:
    """Run the step's script with a spark-submit that ends with these codes in turn; returns the words it was given."""
    (folder / "codes").write_text(codes)
    (folder / "spark-submit").write_text(
        f'#!/bin/bash\nprintf "%s\\n" "$@" >> {folder}/words\ncode=$(head -1 {folder}/codes)\n'
        f"sed -i 1d {folder}/codes\nexit $code\n"
    )
    (folder / "spark-submit").chmod(0o755)
    done = subprocess.run(
        ["bash", "-c", submit_script(job)], env={**os.environ, "PATH": f"{folder}:/usr/bin:/bin"}, check=False
    )
    return done.returncode, (folder / "words").read_text().splitlines()


def test_the_step_tries_again_after_a_crash_and_not_after_a_mistake(tmp_path: Path) -> None:
    for name, codes, ended, attempts in (
        ("crash", "1\n137\n0\n", 0, 3), ("mistake", "2\n0\n", 2, 1), ("store", "10\n0\n", 0, 2), ("all", "1\n1\n1\n0\n", 1, 3),
    ):  # fmt: skip
        (tmp_path / name).mkdir()
        code, words = run_submit(tmp_path / name, job_of(6), codes)
        assert (name, code, words.count("--master")) == (name, ended, attempts)
    assert "data.source.paths=s3://crawl/with space/*.parquet" in words
    assert words[-2:] == ["--config-dir", f"{FOLDER}/launch"]


def test_the_bootstrap_limits_the_cluster_and_refuses_a_damaged_archive(tmp_path: Path) -> None:
    """Runs the script with an `aws` that copies from a folder and a `sudo` that changes nothing."""
    store, node = tmp_path / "store", tmp_path / "node"
    store.mkdir()
    node.mkdir()
    with tarfile.open(store / "environment.tar.gz", "w:gz") as archive:
        body = b'#!/bin/sh\n[ "$1" != -I ] || exec python3 "$@"\n'  # it has no Skytrain to import
        info = tarfile.TarInfo("bin/python")
        info.size, info.mode = len(body), 0o755
        archive.addfile(info, io.BytesIO(body))
    with tarfile.open(store / "launch.tar.gz", "w:gz") as archive:
        archive.addfile(tarfile.TarInfo("submit.sh"))
    sums = [hashlib.sha256((store / f"{name}.tar.gz").read_bytes()).hexdigest() for name in ("environment", "launch")]
    for name, text in {
        "aws": 'f="${4}"; t="${5}"; [ "$t" = - ] && exec cat "$f"; cp "$f" "$t"',
        "sudo": 'exec "$@"',
        "systemd-run": f'echo "$@" >> {tmp_path}/timers',
    }.items():
        (tmp_path / name).write_text(f"#!/bin/bash\n{text}\n")
        (tmp_path / name).chmod(0o755)
    (tmp_path / "instance.json").write_text('{"isMaster": true, "isRunningNameNode": true}')
    script = BOOTSTRAP.replace(FOLDER, str(node)).replace(INSTANCE, str(tmp_path / "instance.json"))
    command = ["bash", "-c", script, "bootstrap", str(store), str(store / "launch.tar.gz"), "5400", *sums]
    environment = {"PATH": f"{tmp_path}:/usr/bin:/bin"}
    subprocess.run(command, env=environment, check=True)
    assert (node / "environment/bin/python").exists() and (node / "launch/submit.sh").exists()
    assert (tmp_path / "timers").read_text() == "--unit=skytrain-limit --on-active=5400 shutdown -h now\n"
    (tmp_path / "instance.json").write_text('{"isMaster": false}')  # EMR would replace any other node
    for name in ("launch", "environment"):
        (node / "launch/submit.sh").unlink(missing_ok=True)
        with (store / f"{name}.tar.gz").open("ab") as file:
            file.write(b"x")
        refused = subprocess.run(command, env=environment, check=False, capture_output=True, text=True)
        assert refused.returncode != 0 and f"{name}.tar.gz: FAILED" in refused.stdout
        assert not (node / "launch/submit.sh").exists()
    assert len((tmp_path / "timers").read_text().splitlines()) == 1


def test_the_limit_of_a_cluster_holds_all_attempts_and_the_start() -> None:
    job = job_of(6, retries=2, idle=600.0)
    [action] = cluster(job).parameters["BootstrapActions"]
    assert int(action["ScriptBootstrapAction"]["Args"][2]) == 1800 + 3 * 43200 + 600
    assert (job.kill_at - NOW).total_seconds() == pytest.approx(1800 + 3 * 43200 + 600, abs=60)


def test_golden_requests_have_no_secret_and_name_the_run() -> None:
    for name, calls in REQUESTS.items():
        text = json.dumps([call.render() for call in calls()])
        assert "****" not in text and '"skytrain:run": "prepare-crawl"' in text.replace(
            '"Key": "skytrain:run", "Value": "prepare-crawl"', '"skytrain:run": "prepare-crawl"'
        ), name
