"""SageMaker on this machine: an account behind moto's server, and the container of a training job as a process."""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from moto.servicequotas.responses import ServiceQuotasResponse
from rehearsal.account import Account, account
from rehearsal.laptop import make_image, pip_wheel

from skytrain.storage import open_store
from skytrain.targets.wheels import skytrain_wheel
from tests.support.faults import FaultProxy
from tests.support.s3 import S3Server

REGION = "us-east-2"
QUOTA = "ml.g5.12xlarge for training job usage"
MANIFEST = "application/vnd.docker.distribution.manifest.v2+json"


@contextlib.contextmanager
def training_jobs(folder: Path, server: S3Server) -> Iterator[TrainingJobs]:
    """Skips the test where this process may not have mounts of its own."""
    if shutil.which("unshare") is None or subprocess.run(["unshare", "--mount", "true"], check=False).returncode:
        pytest.skip("the container of a training job needs a mount namespace")

    def quotas(_: Any) -> str:
        return json.dumps({"Quotas": [{"QuotaName": QUOTA, "QuotaCode": "L-P4", "Value": 1.0}]})

    with (
        mock.patch.object(ServiceQuotasResponse, "list_service_quotas", quotas, create=True),
        account("127.0.0.1", {}) as aws,
        FaultProxy(server.port, region=REGION) as proxy,
    ):
        alone = {"AWS_EC2_METADATA_DISABLED": "true", "AWS_CONFIG_FILE": "none", "AWS_SHARED_CREDENTIALS_FILE": "none"}
        keys = {**server.environment(), "AWS_REGION": REGION}
        ways = {"AWS_ENDPOINT_URL": aws.endpoint, "AWS_ENDPOINT_URL_S3": proxy.url}
        yield TrainingJobs(folder, aws, server, {**keys, **alone, **ways})


class TrainingJobs:
    """SageMaker's part: the account behind moto's server, and the container of a job as a process of this machine."""

    def __init__(self, folder: Path, aws: Account, server: S3Server, environment: dict[str, str]) -> None:
        self.folder = folder
        self.environment = environment
        self._session = aws.ground.session
        self.python = make_image(folder / "image")
        self.root = folder / "ml"
        ground, client = aws.ground, aws.ground.session.client
        trust = {"Effect": "Allow", "Action": "sts:AssumeRole", "Principal": {"Service": ["sagemaker.amazonaws.com"]}}
        client("iam").update_assume_role_policy(
            RoleName="demo-node", PolicyDocument=json.dumps({"Version": "2012-10-17", "Statement": [trust]})
        )
        client("ecr").create_repository(repositoryName="images")
        manifest = {"schemaVersion": 2, "mediaType": MANIFEST, "config": {"digest": "sha256:" + "0" * 64}, "layers": []}
        pushed = client("ecr").put_image(repositoryName="images", imageManifest=json.dumps(manifest), imageTag="1")[
            "image"
        ]["imageId"]
        self.image = f"123456789012.dkr.ecr.{REGION}.amazonaws.com/images@{pushed['imageDigest']}"
        outputs = {
            "project": "demo", "account_id": "123456789012", "region": REGION, "bucket": server.bucket,
            "store": server.new_root(),
            "private_subnets": ground.subnets, "public_subnets": {}, "node_subnets": "private",
            "security_group_id": ground.group, "operator_role_arn": ground.roles.operator,
            "node_role_arn": ground.roles.node, "viewer_role_arn": ground.roles.viewer,
            "instance_profile_name": "demo-node", "prepare_instance_profile_name": "demo-prepare",
        }  # fmt: skip
        (folder / "outputs.json").write_text(json.dumps({name: {"value": value} for name, value in outputs.items()}))

    @property
    def settings(self) -> tuple[str, ...]:
        """What a laptop says about the image, and where its container's folders are here."""
        version = f"{sys.version_info.major}.{sys.version_info.minor}"
        return (
            *(f"cloud.sagemaker.image={self.image}", f"cloud.sagemaker.python={self.python}"),
            *(f"cloud.sagemaker.python_version='{version}'", f"cloud.sagemaker.root={self.root}"),
            "cloud.sagemaker.usd_per_hour=7.09",
        )

    def upload_bundle(self, request: dict[str, Any]) -> None:
        """Upload the packages that the image lacks, under the name that the request has."""
        store = open_store(_channels(request)["bundle"].rstrip("/"))
        wheels = self.folder / "wheels"
        wheels.mkdir()
        made = [skytrain_wheel(wheels), pip_wheel(wheels)]
        sums = "".join(f"{store.upload(path, path.name)}  {path.name}\n" for path in made)
        store.create("SHA256SUMS", sums.encode())

    def request(self) -> dict[str, Any]:
        """Return the only job of the account, as it was asked for."""
        client = self._session.client("sagemaker")
        [job] = client.list_training_jobs()["TrainingJobSummaries"]
        found: dict[str, Any] = client.describe_training_job(TrainingJobName=job["TrainingJobName"])
        return found

    def run(self, request: dict[str, Any]) -> tuple[int, str]:
        """Do what SageMaker does with a request: channels as folders, the entry point in a fresh container."""
        for name, url in _channels(request).items():
            store = open_store(url.rstrip("/"))
            for stat in store.list(""):
                path = self.root / "input/data" / name / stat.key
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(store.read(stat.key))
        hosts = {"current_host": "algo-1", "hosts": ["algo-1"], "network_interface_name": "lo"}
        (self.root / "input/config").mkdir(parents=True)
        (self.root / "input/config/resourceconfig.json").write_text(json.dumps(hosts))
        entry = request["AlgorithmSpecification"]["ContainerEntrypoint"]
        script = (
            f"mkdir -p /tmp/skytrain && mount --bind {self.folder / 'tmp'} /tmp/skytrain && exec {shlex.join(entry)}"
        )
        (self.folder / "tmp").mkdir()
        own = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        done = subprocess.run(
            ["unshare", "--mount", "bash", "-c", script],
            env={**own, **self.environment, **request["Environment"], "OMP_NUM_THREADS": "1"},
            capture_output=True,
            text=True,
            check=False,
        )
        return done.returncode, done.stdout[-6000:] + done.stderr[-2000:]


def _channels(request: dict[str, Any]) -> dict[str, str]:
    return {one["ChannelName"]: one["DataSource"]["S3DataSource"]["S3Uri"] for one in request["InputDataConfig"]}
