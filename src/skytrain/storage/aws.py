"""How to reach S3: endpoint, region and credentials as AWS's own tools find them, and what its errors mean."""

from __future__ import annotations

import os
import re
from datetime import timedelta
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..config import MissingExtra
from .errors import AccessDenied, NotFound, StoreError
from .retry import Retry

if TYPE_CHECKING:
    from obstore.store import S3Store

# One request moves at most one part (16 MiB, more only for objects above 140 GB): slower than this is a dead connection.
REQUEST_TIMEOUT = "60s"

# botocore renews credentials ten minutes before they end, so a copy is safe for less than that.
CREDENTIALS_KEPT = timedelta(minutes=10)

# What the server found in the bytes that reached it; the next try sends them again.
DAMAGED_ON_THE_WAY = {
    "BadDigest",
    "IncompleteBody",
    "InvalidDigest",
    "XAmzContentChecksumMismatch",
    "XAmzContentSHA256Mismatch",
}
BUSY = {
    "InternalError",
    "RequestTimeout",
    "ServiceUnavailable",
    "SlowDown",
    "503 SlowDown",
    "OperationAborted",
    "NoSuchUpload",
}


def s3_arguments(retry: Retry, sse: str | None = None, kms_key: str | None = None) -> dict[str, Any]:
    """Arguments of obstore's S3Store for any bucket."""
    found = _from_profile() if _profile_in_play() else {}
    config: dict[str, Any] = {"checksum_algorithm": "SHA256", **found.get("config", {})}
    if sse is not None:
        config["server_side_encryption"] = {"s3": "AES256", "kms": "aws:kms"}[sse]
    if kms_key is not None:
        config["sse_kms_key_id"] = kms_key
    endpoint = config.get("endpoint") or os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL", "")
    arguments: dict[str, Any] = {
        "config": config,
        "client_options": {"timeout": REQUEST_TIMEOUT, "allow_http": endpoint.startswith("http://")},
        "retry_config": retry.for_requests(),
    }
    if "credential_provider" in found:
        arguments["credential_provider"] = found["credential_provider"]
    return arguments


def open_bucket(bucket: str, prefix: str, retry: Retry, sse: str | None, kms_key: str | None) -> S3Store:
    from obstore.store import S3Store

    return S3Store(bucket, prefix=prefix or None, **s3_arguments(retry, sse, kms_key))


def _profile_in_play() -> bool:
    """Whether AWS's shared files have a say: obstore itself reads the environment and instance metadata, not them."""
    if os.environ.get("AWS_PROFILE") or os.environ.get("AWS_DEFAULT_PROFILE"):
        return True
    files = (("AWS_CONFIG_FILE", "~/.aws/config"), ("AWS_SHARED_CREDENTIALS_FILE", "~/.aws/credentials"))
    return any(Path(os.environ.get(name, default)).expanduser().is_file() for name, default in files)


def _from_profile() -> dict[str, Any]:
    """Region, endpoint and credentials by AWS's own rules, single sign-on and assumed roles included."""
    if find_spec("boto3") is None:
        raise MissingExtra("boto3", "aws")
    import botocore.configprovider
    import botocore.session
    from obstore.auth.boto3 import Boto3CredentialProvider

    session = botocore.session.Session()
    config = {}
    region = os.environ.get("AWS_REGION") or session.get_config_variable("region")
    if region:
        config["region"] = region
    endpoint = botocore.configprovider.ConfiguredEndpointProvider(
        full_config=session.full_config, scoped_config=session.get_scoped_config(), client_name="s3"
    ).provide()
    if endpoint:
        config["endpoint"] = endpoint
    found: dict[str, Any] = {"config": config}
    if session.get_credentials() is not None:
        found["credential_provider"] = Boto3CredentialProvider(session, ttl=CREDENTIALS_KEPT)
    return found


def explain(error: Exception, operation: str, url: str) -> tuple[StoreError, bool]:
    """What obstore's error means to a user, and whether it may pass if we try again."""
    from obstore import exceptions

    text = str(error).partition("\n\nDebug source")[0].strip()
    code = _first(r"<Code>([^<]+)</Code>", text)
    status = _first(r"status code: (\d{3})", text)
    # obstore has repeated the request by the same policy already: once more would only multiply the waiting.
    retries = _first(r"after (\d+) retries", text)
    attempts = int(retries) + 1 if retries else 1
    bucket = url.removeprefix("s3://").partition("/")[0]
    if code == "NoSuchBucket":
        return StoreError(operation, url, f"there is no bucket {bucket!r}", hint="create it, or mend store.root"), False
    if isinstance(error, FileNotFoundError):
        return NotFound(operation, url, "there is no such object"), False
    if "/latest/api/token" in text or "/latest/meta-data" in text or "credential" in text.lower():
        hint = "set AWS_PROFILE, or AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or give the machine a role"
        return AccessDenied(operation, url, f"no AWS credentials were found ({_last_line(text)})", hint=hint), False
    if isinstance(error, exceptions.PermissionDeniedError | exceptions.UnauthenticatedError) or code in (
        "ExpiredToken",
        "InvalidToken",
    ):
        return AccessDenied(operation, url, _said(code, text), hint=_denied_hint(code, operation)), False
    if code in DAMAGED_ON_THE_WAY:
        return StoreError(
            operation, url, f"the bytes were damaged on their way ({code})", hint="check the network and any proxy"
        ), True
    if code == "PermanentRedirect" or status in ("301", "307"):
        return StoreError(
            operation, url, f"bucket {bucket!r} is in another region", hint="set AWS_REGION to the bucket's region"
        ), False
    hint = "the service or the network is in trouble: run it again later; nothing half-written was left"
    transient = not retries and (status is None or status.startswith("5") or status == "429" or code in BUSY)
    return StoreError(operation, url, _said(code, text), hint=hint, attempts=attempts), transient


def _denied_hint(code: str | None, operation: str) -> str:
    if code in ("ExpiredToken", "InvalidToken"):
        return "the credentials have ended: sign in again"
    if code == "RequestTimeTooSkewed":
        return "this machine's clock is wrong: set it"
    if code in ("InvalidAccessKeyId", "SignatureDoesNotMatch"):
        return "the credentials are wrong: check AWS_PROFILE, AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"
    return f"these credentials may not {operation} there: docs/storage.md lists the IAM actions"


def _said(code: str | None, text: str) -> str:
    message = _first(r"<Message>([^<]+)</Message>", text)
    return f"{code}: {message}" if code and message else code or _last_line(text)


def _last_line(text: str) -> str:
    return text.splitlines()[-1].strip() if text else "no reason given"


def _first(pattern: str, text: str) -> str | None:
    match = re.search(pattern, text)
    return match[1] if match else None
