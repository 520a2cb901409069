"""Translates S3 errors into store errors, and decides which of them are transient."""

from __future__ import annotations

import re

from .aws import NO_CREDENTIALS_HINT
from .errors import AccessDenied, NoResponse, NotFound, ObjectError, StoreError, StoreUnreachable
from .odd_keys import REFUSED

# The server received corrupted bytes; a retry sends them again.
DAMAGED = {"BadDigest", "IncompleteBody", "InvalidDigest", "XAmzContentChecksumMismatch", "XAmzContentSHA256Mismatch"}
# NoSuchUpload: the upload completed but the response was lost, or it was cleaned up; either way it is restarted.
MAY_PASS = {"InternalError", "NoSuchUpload", "OperationAborted", "RequestTimeout", "ServiceUnavailable", "SlowDown"}
EXPIRED = {"ExpiredToken", "InvalidToken", "TokenRefreshRequired"}
WRONG_KEYS = {"InvalidAccessKeyId", "SignatureDoesNotMatch"}

ELSEWHERE = {"AuthorizationHeaderMalformed", "PermanentRedirect", "IllegalLocationConstraintException"}

ARCHIVED = "InvalidObjectState"  # of an object that was written with a storage class such as GLACIER
# Operations that fail for a reason that concerns only the object, such as its encryption.
OF_ONE_OBJECT = ("read", "stat", "download")

TROUBLE_HINT = "the service or the network is in trouble: run it again later; every object there is complete or absent"


class CutShort(Exception):
    """The response body ended before its last byte."""


class Damaged(Exception):
    """The received bytes differ from the stored ones."""


class Contended(Exception):
    """S3 refused to create an object because of a concurrent writer, which then did not finish."""


class Replaced(StoreError):
    """Another writer replaced the object while it was being read."""


def explain(error: Exception, operation: str, url: str) -> tuple[StoreError, bool]:
    """Return the error as a `StoreError`, and whether it is transient (worth a retry)."""
    from obstore import exceptions

    text = str(error).partition("\n\nDebug source")[0].strip()
    code = _first(r"<Code>([^<]+)</Code>", text)
    status = _first(r"status code: (\d{3})", text)
    # A bulk delete that failed for some objects: S3 responds with 200, and obstore puts the error code at the end.
    code = code or _first(r"DeleteObjects request failed .*\(code: (\w+)\)$", text)
    said = _said(error, code, text)
    bucket = url.removeprefix("s3://").partition("/")[0]
    if code == "NoSuchBucket":
        return StoreError(
            operation, url, f"there is no bucket {bucket!r}", hint="create it, or correct store.root"
        ), False
    if isinstance(error, FileNotFoundError) and code not in MAY_PASS:
        return NotFound(operation, url, "there is no such object"), False
    if code == ARCHIVED:  # which is a 403, although nobody is denied anything
        hint = "restore it (aws s3api restore-object), or delete it: whoever wrote it chose a storage class of archives"
        return ObjectError(operation, url, said, hint=hint), False
    # A key may contain any word, so match only the request's host or obstore's phrase for credential errors.
    if (
        re.search(r"Error performing \w+ \w+://[^/ ]+/latest/(api/token|meta-data)", text)
        or "credential provider: " in text
    ):
        # Role credentials come from a separate metadata service, which can have outages too.
        troubled = status is not None and status.startswith("5")
        return AccessDenied(operation, url, f"no AWS credentials: {said}", hint=NO_CREDENTIALS_HINT), troubled
    # obstore has an error class for a denied read or write; a denied list is recognizable only by its status.
    denied = isinstance(error, exceptions.PermissionDeniedError | exceptions.UnauthenticatedError)
    if denied or status in ("401", "403") or code in {"AccessDenied", *EXPIRED, *WRONG_KEYS}:
        return AccessDenied(operation, url, said, hint=_denied_hint(code, operation)), False
    if isinstance(error, exceptions.PreconditionError):
        return Replaced(operation, url, "another writer replaced it in the meantime", hint="run it again"), False
    if REFUSED in text:
        named = _first(r'(?:parsing Path|Path) "([^"]*)"', text)
        hint = f"delete it: aws s3api delete-object --bucket {bucket} --key {named!r}"
        return StoreError(operation, url, f"an object there has the name {named!r}", hint=hint), False
    # Of a redirect obstore hides S3's error code, PermanentRedirect.
    if "redirect without LOCATION" in text or code in ELSEWHERE:
        return StoreError(
            operation,
            url,
            f"bucket {bucket!r} is in another region{f' ({said})' if code else ''}",
            hint="set AWS_REGION to the bucket's region (`cloud.region` of cloud/aws.yaml, where Skytrain's base made it)",
        ), False
    if isinstance(error, Damaged) or code in DAMAGED:
        problem = f"the bytes were damaged in transit ({code or 'another sha256'})"
        return StoreUnreachable(operation, url, problem, hint="check the network and any proxy"), True
    if status is None and not code and not isinstance(error, CutShort | Contended):
        return NoResponse(operation, url, said, hint=TROUBLE_HINT), True
    if status is None or status.startswith("5") or code in MAY_PASS:
        return StoreUnreachable(operation, url, said, hint=TROUBLE_HINT), True
    return (ObjectError if operation in OF_ONE_OBJECT else StoreError)(operation, url, said), False


def _said(error: Exception, code: str | None, text: str) -> str:
    """Return the reason given by the server, or by the network stack."""
    message = _first(r"<Message>([^<]+)</Message>", text)
    if code:
        return f"{code}: {message}" if message else code
    if isinstance(error, CutShort):
        return "the connection was cut before the last byte"
    if isinstance(error, Contended):
        return "other writers are creating it too"
    lines = text.splitlines() or ["no reason given"]
    reason = (
        lines[-1]
        .rpartition(" - ")[2]
        .strip(": ")
        .replace("Server returned non-2xx status code:", "the server answered")
    )
    if "kind: Connect," in str(error):  # obstore's short message omits why the connection failed
        reason = (
            _first(r'(?:message|error): "(?:failed to lookup address information: )?([^"]+)"', str(error)) or reason
        )
    endpoint = _first(r"Error performing \w+ (\w+://[^/ ]+)", text)
    return f"{reason} ({endpoint})" if endpoint else reason


def _denied_hint(code: str | None, operation: str) -> str:
    if code in EXPIRED:
        return "the credentials have expired: sign in again"
    if code == "RequestTimeTooSkewed":
        return "this machine's clock is wrong: set it"
    if code in WRONG_KEYS:
        return "these credentials are wrong: check AWS_PROFILE, or AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"
    return f"these credentials may not {operation} there: docs/storage.md lists the IAM actions"


def _first(pattern: str, text: str) -> str | None:
    match = re.search(pattern, text)
    return match[1] if match else None
