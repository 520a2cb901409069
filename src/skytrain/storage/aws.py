"""S3 connection settings: endpoint, region and credentials, resolved as AWS's tools do."""

from __future__ import annotations

import socket
from dataclasses import dataclass
from datetime import timedelta
from importlib.util import find_spec
from typing import Any
from urllib.parse import urlsplit

from .. import __version__
from ..config import (
    MissingExtra,
    StoreConfig,
    aws_region,
    has_aws_credentials,
    has_aws_profile,
    metadata_endpoint,
    s3_endpoint,
)
from .errors import AccessDenied, StoreError
from .retry import Retry

# Eight concurrent parts of 8 MiB still finish in time at 3 Mbit/s, and a dead connection is detected.
REQUEST_TIMEOUT = "180s"

# botocore renews credentials ten minutes before they expire, so a copy is valid for at least that long.
CREDENTIALS_KEPT = timedelta(minutes=10)

METADATA_ENDPOINT = "http://169.254.169.254"
METADATA_SECONDS = 2.0

CONNECT_SECONDS = 10.0
READ_SECONDS = 60.0
CALL_ATTEMPTS = 8


@dataclass(frozen=True)
class AwsPartition:
    """A part of AWS with accounts, ARNs and addresses of its own."""

    name: str  # in ARNs
    addresses: str  # the end of every service's
    console: str  # after the region


PARTITIONS = {
    "cn": AwsPartition("aws-cn", "amazonaws.com.cn", "console.amazonaws.cn"),
    "us-gov": AwsPartition("aws-us-gov", "amazonaws.com", "console.amazonaws-us-gov.com"),
    "eusc": AwsPartition("aws-eusc", "amazonaws.eu", "console.amazonaws-eusc.eu"),
}
LARGEST_PARTITION = AwsPartition("aws", "amazonaws.com", "console.aws.amazon.com")

NO_CREDENTIALS_HINT = "set AWS_PROFILE, or AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or give this machine a role"


def partition_of(region: str) -> AwsPartition:
    """Return the partition of a region."""
    return next((one for start, one in PARTITIONS.items() if region.startswith(f"{start}-")), LARGEST_PARTITION)


def s3_arguments(root: str, retry: Retry, sse: str | None = None, kms_key: str | None = None) -> dict[str, Any]:
    """Return the arguments of obstore's `S3Store` that do not depend on the bucket. `root` is for error messages."""
    config: dict[str, Any] = {"checksum_algorithm": "SHA256"}
    if sse is not None:
        config["server_side_encryption"] = {"s3": "AES256", "kms": "aws:kms"}[sse]
    if kms_key is not None:
        config["sse_kms_key_id"] = kms_key
    arguments: dict[str, Any] = {"config": config, "retry_config": retry.for_requests()}
    endpoint = s3_endpoint()
    region = aws_region()
    if has_aws_profile():  # obstore reads the environment and the instance role, but not ~/.aws
        session = _botocore_session(root)
        arguments["credential_provider"] = _credential_provider(root, session)
        region = config["region"] = region or session.get_config_variable("region") or "us-east-1"
        endpoint = _configured_endpoint(session)
    elif not has_aws_credentials():
        config["metadata_endpoint"] = _metadata_endpoint(root)
    if not endpoint and region and (addresses := partition_of(region).addresses) != LARGEST_PARTITION.addresses:
        endpoint = f"https://s3.{region}.{addresses}"  # obstore knows those of the largest partition
    if endpoint:
        config["endpoint"] = endpoint
    plain = bool(endpoint and endpoint.startswith("http://"))
    arguments["client_options"] = {"timeout": REQUEST_TIMEOUT, "allow_http": plain}
    return arguments


def aws_client_config() -> Any:
    """Return botocore's configuration for calls to AWS's control planes: botocore retries, slower when throttled."""
    from botocore.config import Config

    retries = {"mode": "adaptive", "total_max_attempts": CALL_ATTEMPTS}
    named = f"skytrain/{__version__}"  # CloudTrail shows it with every request
    return Config(retries=retries, connect_timeout=CONNECT_SECONDS, read_timeout=READ_SECONDS, user_agent_extra=named)


def register_fsspec(config: StoreConfig | None = None) -> None:
    """Make `fsspec.open("s3://...")` reach the same endpoint with the same credentials and encryption as the store.

    It serves libraries that open files through fsspec: Lightning's checkpoints and loggers, pandas, pyarrow.
    """
    if find_spec("fsspec") is None:
        raise MissingExtra("fsspec", "train")
    import fsspec
    from obstore.fsspec import FsspecStore

    if config is None:
        arguments = s3_arguments("s3://", Retry())
    else:
        arguments = s3_arguments(config.root, Retry(), config.sse, config.kms_key)

    class S3FileSystem(FsspecStore):
        protocol = "s3"

        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__("s3", *args, **{**arguments, **kwargs})

    fsspec.register_implementation("s3", S3FileSystem, clobber=True)


def _botocore_session(root: str) -> Any:
    if find_spec("boto3") is None:
        raise MissingExtra("boto3", "aws")
    import botocore.exceptions
    import botocore.session

    session = botocore.session.Session()
    try:
        session.get_scoped_config()
    except botocore.exceptions.BotoCoreError as error:  # no such profile, a file that does not parse
        raise StoreError("open", root, str(error), hint="check AWS_PROFILE and ~/.aws/config") from error
    return session


def _credential_provider(root: str, session: Any) -> Any:
    import botocore.exceptions
    from obstore.auth.boto3 import Boto3CredentialProvider

    try:
        if session.get_credentials() is None:
            raise AccessDenied("open", root, "no AWS credentials were found", hint=NO_CREDENTIALS_HINT)
    except botocore.exceptions.BotoCoreError as error:
        raise AccessDenied("open", root, f"no AWS credentials: {error}", hint=NO_CREDENTIALS_HINT) from error
    return Boto3CredentialProvider(session, ttl=CREDENTIALS_KEPT)


def _configured_endpoint(session: Any) -> str | None:
    from botocore.configprovider import ConfiguredEndpointProvider

    provider = ConfiguredEndpointProvider(session.full_config, session.get_scoped_config(), client_name="s3")
    endpoint = provider.provide()
    return str(endpoint) if endpoint else None


def _metadata_endpoint(root: str) -> str:
    """Return the EC2 metadata endpoint after checking that it responds.

    Outside EC2, obstore would retry for minutes.
    """
    endpoint = metadata_endpoint() or METADATA_ENDPOINT
    parts = urlsplit(endpoint)
    try:
        socket.create_connection((parts.hostname or "", parts.port or 80), timeout=METADATA_SECONDS).close()
    except OSError as error:
        problem = "no AWS credentials were found in the environment or in ~/.aws, and this machine has no role"
        raise AccessDenied("open", root, problem, hint=NO_CREDENTIALS_HINT) from error
    return endpoint.rstrip("/")
