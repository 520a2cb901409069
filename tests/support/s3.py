"""A real S3 server for tests: SeaweedFS on free loopback ports, one for each test process."""

from __future__ import annotations

import ctypes
import json
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from skytrain.storage import Retry, Store, open_store

from .faults import FaultProxy

REGION = "us-east-1"
ACCESS_KEY, SECRET_KEY = "testing", "testing-secret"
READER_KEY, READER_SECRET = "reader", "reader-secret"  # may read, never write
ENCRYPTION_KEY = "00112233445566778899aabbccddeeff00112233445566778899aabbccddeeff"
START_SECONDS = 90

# The product's policy with waits that a test can afford.
FAST_RETRY = Retry(first_wait_seconds=0.002, longest_wait_seconds=0.02)
BRIEFLY = 0.05  # seconds that a test keeps trying where nothing will get better

IDENTITIES = {
    "identities": [
        {
            "name": "admin",
            "credentials": [{"accessKey": ACCESS_KEY, "secretKey": SECRET_KEY}],
            "actions": ["Admin", "Read", "Write", "List", "Tagging"],
        },
        {
            "name": "reader",
            "credentials": [{"accessKey": READER_KEY, "secretKey": READER_SECRET}],
            "actions": ["Read", "List"],
        },
    ]
}


@dataclass(frozen=True)
class S3Server:
    port: int
    bucket: str = "skytrain-tests"

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def client(self) -> Any:
        """AWS's own client, to look at what we did from outside."""
        import boto3
        from botocore.config import Config

        return boto3.client(
            "s3",
            endpoint_url=self.url,
            aws_access_key_id=ACCESS_KEY,
            aws_secret_access_key=SECRET_KEY,
            region_name=REGION,
            config=Config(s3={"addressing_style": "path"}, retries={"max_attempts": 1}),
        )

    def environment(self, url: str | None = None) -> dict[str, str]:
        return {
            "AWS_ENDPOINT_URL": url or self.url,
            "AWS_ACCESS_KEY_ID": ACCESS_KEY,
            "AWS_SECRET_ACCESS_KEY": SECRET_KEY,
            "AWS_REGION": REGION,
        }

    def new_root(self) -> str:
        """A place in the bucket that no other test knows."""
        return f"s3://{self.bucket}/{secrets.token_hex(8)}"


@pytest.fixture(scope="session")
def s3_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    """One server for all tests of a process; they stay apart by prefix."""
    folder = tmp_path_factory.mktemp("seaweedfs")
    process, server = start_server(folder)
    yield server
    ended = process.poll()
    process.kill()  # nothing is to be kept, and a polite end takes 15 seconds
    process.wait()
    log = (folder / "log").read_text(errors="replace")[-4000:]
    shutil.rmtree(folder, ignore_errors=True)
    assert ended is None, f"SeaweedFS ended during the tests, with code {ended}:\n{log}"


@pytest.fixture(autouse=True)
def same_aws_environment() -> Iterator[None]:
    """Keys that a test leaves behind would be those of all later ones, and of the server, if they start it."""
    before = _aws_variables()
    yield
    after = _aws_variables()
    for name in after.keys() - before.keys():
        del os.environ[name]
    os.environ.update(before)
    assert after == before, (
        f"the test changed {', '.join(sorted({name for name, _ in after.items() ^ before.items()}))}"
    )


def _aws_variables() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name.startswith("AWS_")}


@pytest.fixture
def no_aws(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> pytest.MonkeyPatch:
    """Nothing of the developer's own AWS settings reaches a test, and no test leaves this machine."""
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "no-config"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "no-credentials"))
    monkeypatch.setenv("AWS_EC2_METADATA_SERVICE_ENDPOINT", "http://127.0.0.1:1")
    return monkeypatch


@pytest.fixture
def s3_environment(s3_server: S3Server, no_aws: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """AWS's standard environment, set to the server."""
    for name, value in s3_server.environment().items():
        no_aws.setenv(name, value)
    return no_aws


@pytest.fixture
def s3_root(s3_server: S3Server, s3_environment: pytest.MonkeyPatch) -> str:
    """A fresh `s3://bucket/prefix`; the environment leads to it."""
    return s3_server.new_root()


@pytest.fixture
def s3_store(s3_root: str) -> Store:
    """A fresh, empty store in S3."""
    return open_store(s3_root, retry=FAST_RETRY)


@pytest.fixture
def fault_proxy(s3_server: S3Server, s3_environment: pytest.MonkeyPatch) -> Iterator[FaultProxy]:
    """The way to the server, for stores that are opened from now on; `inject` faults into it."""
    with FaultProxy(s3_server.port) as proxy:
        s3_environment.setenv("AWS_ENDPOINT_URL", proxy.url)
        yield proxy


def start_server(folder: Path) -> tuple[subprocess.Popen[bytes], S3Server]:
    (folder / "data").mkdir()
    (folder / "identities.json").write_text(json.dumps(IDENTITIES))
    for _ in range(3):  # another process may take a port between our choice and its use
        names = [
            "master.port",
            "master.port.grpc",
            "volume.port",
            "volume.port.grpc",
            "filer.port",
            "filer.port.grpc",
            "s3.port",
            "s3.port.grpc",
        ]
        ports = dict(zip(names, free_ports(len(names)), strict=True))
        with (folder / "log").open("wb") as log:
            process = subprocess.Popen(
                [
                    str(Path(sys.executable).with_name("weed")),
                    "server",
                    f"-dir={folder / 'data'}",
                    "-ip=127.0.0.1",
                    "-ip.bind=127.0.0.1",
                    "-filer",
                    "-s3",
                    f"-s3.config={folder / 'identities.json'}",
                    *(f"-{name}={port}" for name, port in ports.items()),
                    "-s3.port.iceberg=0",
                    "-s3.port.lance=0",
                    "-master.telemetry=false",
                    "-master.volumeSizeLimitMB=256",
                    "-volume.max=50",
                    "-volume.preStopSeconds=0",
                ],
                cwd=folder,
                # AWS's keys would replace those of the configuration.
                env={
                    **{name: value for name, value in os.environ.items() if not name.startswith("AWS_")},
                    "HOME": str(folder),
                    "WEED_S3_SSE_KEK": ENCRYPTION_KEY,
                },
                stdout=log,
                stderr=log,
                preexec_fn=die_with_parent,
            )
        server = S3Server(ports["s3.port"])
        if wait_until_writable(process, server):
            return process, server
        process.kill()
        process.wait()
    raise RuntimeError("SeaweedFS did not start:\n" + (folder / "log").read_text(errors="replace")[-4000:])


def wait_until_writable(process: subprocess.Popen[bytes], server: S3Server) -> bool:
    """A PUT is the only true sign: the server answers before it can store."""
    from botocore.exceptions import BotoCoreError, ClientError

    client, deadline = server.client(), time.monotonic() + START_SECONDS
    while process.poll() is None and time.monotonic() < deadline:
        try:
            client.create_bucket(Bucket=server.bucket)
            client.put_object(Bucket=server.bucket, Key="started", Body=b"1")
            return True
        except (BotoCoreError, ClientError):
            time.sleep(0.1)
    return False


def free_ports(count: int) -> list[int]:
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]


def die_with_parent() -> None:
    """A test process that is killed takes its server with it (Linux)."""
    if sys.platform == "linux":
        pr_set_pdeathsig = 1
        ctypes.CDLL(None).prctl(pr_set_pdeathsig, signal.SIGKILL)
