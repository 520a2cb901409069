"""An AWS account in this process (moto), and sessions whose answers a test decides."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import boto3
import pytest
from botocore.stub import Stubber
from moto import mock_aws

from skytrain.cloud import AwsSession

REGION = "us-east-2"
# One for all tests: it has parsed the services' models, which take a second for EC2 alone.
SHARED = boto3.Session(aws_access_key_id="testing", aws_secret_access_key="testing")


@pytest.fixture
def account(no_aws: pytest.MonkeyPatch) -> Iterator[AwsSession]:
    """A session in moto's account 123456789012."""
    no_aws.setenv("AWS_EC2_METADATA_DISABLED", "true")
    with mock_aws():
        yield AwsSession(SHARED, REGION)


class StubbedSession(AwsSession):
    """A session whose clients answer what the test has told `stub`; botocore checks requests and answers."""

    def __init__(self) -> None:
        super().__init__(SHARED, REGION)
        self._stubs: dict[tuple[str, str], Stubber] = {}

    def stub(self, service: str, region: str = REGION) -> Stubber:
        if (service, region) not in self._stubs:
            self._stubs[service, region] = Stubber(self.client(service, region))
            self._stubs[service, region].activate()
        return self._stubs[service, region]


@pytest.fixture
def stubbed(no_aws: pytest.MonkeyPatch) -> StubbedSession:
    return StubbedSession()


def client_error(code: str, message: str = "said AWS") -> dict[str, Any]:
    """Arguments of `Stubber.add_client_error`."""
    return {"service_error_code": code, "service_message": message}
