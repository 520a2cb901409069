"""An AWS account in this process (moto), and sessions whose answers a test decides."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import boto3
import pytest
from botocore.stub import Stubber
from moto import mock_aws

from skytrain.aws import AwsSession
from skytrain.storage import Store
from tests.support.scaling import ScalingStandIn

from .ground import Ground

REGION = "us-east-2"
# One for all tests, with its clients: making the one of EC2 alone takes a second.
SHARED = AwsSession(boto3.Session(aws_access_key_id="testing", aws_secret_access_key="testing"), REGION)


@pytest.fixture
def scaling(monkeypatch: pytest.MonkeyPatch) -> ScalingStandIn:
    """Auto Scaling's machine lifecycle, which moto lacks."""
    made = ScalingStandIn()
    for target, name, replacement in made.patches():
        monkeypatch.setattr(target, name, replacement, raising=False)
    return made


@pytest.fixture
def account(no_aws: pytest.MonkeyPatch, scaling: ScalingStandIn) -> Iterator[AwsSession]:
    """A session in moto's account 123456789012."""
    no_aws.setenv("AWS_EC2_METADATA_DISABLED", "true")
    no_aws.setenv("MOTO_EC2_LOAD_DEFAULT_AMIS", "false")  # hundreds of images that no test looks at
    with mock_aws():
        yield shared_session()


def shared_session() -> AwsSession:
    """A new session that knows nothing yet, with the clients of all tests."""
    session = AwsSession(SHARED._session, REGION)
    session._clients = SHARED._clients
    return session


def use_store(monkeypatch: pytest.MonkeyPatch, store: Callable[[], Store]) -> None:
    """Let every bucket be this store, whoever opens it: buckets have tests of their own, against a real S3."""
    monkeypatch.setattr("skytrain.storage.bucket.BucketStore", lambda *_: store())


def use_session(monkeypatch: pytest.MonkeyPatch, opened: Callable[[str, str | None], AwsSession]) -> None:
    """Let every session that is opened, whoever opens it, be the one that `opened` returns for region and account."""
    monkeypatch.setattr("skytrain.aws.session.AwsSession", lambda _, *wanted: opened(*wanted))


class StubbedSession:
    """A session whose clients answer what the test has told `stub`; botocore checks requests and answers."""

    def __init__(self, session: AwsSession) -> None:
        self.session, self.perform = session, session.perform
        self._stubs: dict[str, Stubber] = {}

    def stub(self, service: str) -> Stubber:
        if service not in self._stubs:
            self._stubs[service] = Stubber(self.session.client(service))
            self._stubs[service].activate()
        return self._stubs[service]

    def close(self) -> None:
        for stub in self._stubs.values():
            stub.deactivate()


@pytest.fixture
def stubbed(no_aws: pytest.MonkeyPatch) -> Iterator[StubbedSession]:
    """Stubs on the clients of `account`, where a test uses both: what is stubbed does not reach moto."""
    session = StubbedSession(shared_session())
    yield session
    session.close()


def client_error(code: str, message: str = "said AWS") -> dict[str, Any]:
    """Arguments of `Stubber.add_client_error`."""
    return {"service_error_code": code, "service_message": message}


def record_spend(store: Store, run: str, usd: float) -> None:
    """Let a run have cost so much: the last record of a machine that has left."""
    count = {"usd": usd, "seconds": 60.0, "boot": "b", "boot_seconds": 60.0}
    spent = {"spend": {"usd": usd, "usd_per_hour": 1.0, "machines": {"i-1": count}}}
    store.write(f"runs/{run}/meeting/left/1x1/i-1.a.json", json.dumps(spent).encode())


@pytest.fixture
def ground(account: AwsSession) -> Ground:
    return Ground(account)
