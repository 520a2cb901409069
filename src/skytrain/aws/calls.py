"""A request to AWS as data: checked by botocore before it is sent, and printable for `--dry-run`."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from functools import cache
from typing import Any

from ..config import MASK, SECRET_NAME, SECRET_VALUE

READING = ("Describe", "Get", "List", "Head", "Lookup", "Query", "Decode", "Simulate", "Filter", "Search")
NAME_KEYS = ("Name", "name", "Key", "key")
VALUE_KEYS = ("Value", "value")
TOKEN_LENGTH = 32  # within every limit: 64 for EC2 and EMR Serverless, 36 for SageMaker


class InvalidCall(AssertionError):
    """A request that AWS's own service model rejects: a defect of Skytrain, not of the user's input."""


@dataclass(frozen=True)
class Call:
    """One request: `Call("ec2", "TerminateInstances", {"InstanceIds": [...]})`, named as in AWS's API reference.

    `token_key` makes a repeated request the same request (a run and attempt, for example): where the API takes a client
    token, it is derived from the key and the parameters. Such calls need a key.
    """

    service: str
    operation: str
    parameters: Mapping[str, Any] = field(default_factory=dict)
    token_key: str = ""

    @property
    def mutates(self) -> bool:
        return not self.operation.startswith(READING)

    @property
    def action(self) -> str:
        """Return the IAM action that allows the call; S3 and a few other services name theirs differently."""
        service = IAM_SERVICES.get(self.service, self.service)
        return f"{service}:{IAM_ACTIONS.get((self.service, self.operation), self.operation)}"

    def body(self) -> dict[str, Any]:
        """Return the parameters as sent, with the client token, after botocore has checked them.

        Raises InvalidCall for an unknown operation or parameter, a wrong type or a missing token key.
        """
        model = _operation_model(self.service, self.operation)
        body = dict(self.parameters)
        for name in model.idempotent_members:
            if name not in body and self.mutates:
                if not self.token_key:
                    raise InvalidCall(f"{self.service} {self.operation} takes {name}: the call needs a token_key")
                body[name] = self._token()
        _check(self, model, body)
        return body

    def render(self) -> dict[str, Any]:
        """Return what `--dry-run` prints: the exact request as JSON values, with secrets masked."""
        return {"service": self.service, "operation": self.operation, "parameters": _masked(as_json(self.body()))}

    def _token(self) -> str:
        said = [self.service, self.operation, as_json(self.parameters), self.token_key]
        return hashlib.sha256(json.dumps(said, sort_keys=True).encode()).hexdigest()[:TOKEN_LENGTH]


IAM_SERVICES = {"service-quotas": "servicequotas", "resourcegroupstaggingapi": "tag", "emr": "elasticmapreduce"}
IAM_ACTIONS = {
    ("s3", "HeadObject"): "GetObject",
    ("s3", "ListObjectsV2"): "ListBucket",
    ("s3", "ListMultipartUploads"): "ListBucketMultipartUploads",
    ("s3", "ListParts"): "ListMultipartUploadParts",
    ("s3", "CreateMultipartUpload"): "PutObject",
    ("s3", "UploadPart"): "PutObject",
    ("s3", "CompleteMultipartUpload"): "PutObject",
    ("s3", "CopyObject"): "PutObject",
    ("s3", "DeleteObjects"): "DeleteObject",
    ("s3", "GetBucketEncryption"): "GetEncryptionConfiguration",
    ("s3", "GetPublicAccessBlock"): "GetBucketPublicAccessBlock",
    ("s3", "GetBucketLifecycleConfiguration"): "GetLifecycleConfiguration",
}


def render_calls(calls: Iterable[Call]) -> str:
    """Return the JSON list that `--dry-run` prints."""
    return json.dumps([call.render() for call in calls], indent=1)


def as_json(value: Any) -> Any:
    """Return the value with bytes in base64 and times in ISO 8601."""
    if isinstance(value, Mapping):
        return {str(name): as_json(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [as_json(item) for item in value]
    if isinstance(value, bytes | bytearray):
        return base64.b64encode(bytes(value)).decode()
    return value.isoformat() if isinstance(value, datetime) else value


def _masked(value: Any, name: str = "") -> Any:
    if isinstance(value, dict):
        named = next((str(value[key]) for key in NAME_KEYS if key in value), "")
        return {
            key: _masked(item, named if key in VALUE_KEYS and named else key if key not in NAME_KEYS else "")
            for key, item in value.items()
        }
    if isinstance(value, list):
        return [_masked(item, name) for item in value]
    if value is not None and SECRET_NAME.search(name):
        return MASK
    if name == "UserData":
        script = base64.b64decode(value).decode(errors="replace")
        return (
            base64.b64encode(SECRET_VALUE.sub(MASK, script).encode()).decode() if SECRET_VALUE.search(script) else value
        )
    return SECRET_VALUE.sub(MASK, value) if isinstance(value, str) else value


@cache
def _service_models() -> Any:
    import botocore.session

    return botocore.session.Session()


@cache
def _operation_model(service: str, operation: str) -> Any:
    import botocore.exceptions
    from botocore.model import OperationNotFoundError

    try:
        return _service_models().get_service_model(service).operation_model(operation)
    except (botocore.exceptions.UnknownServiceError, OperationNotFoundError) as error:
        raise InvalidCall(str(error)) from None


def _check(call: Call, model: Any, body: Mapping[str, Any]) -> None:
    from botocore.validate import ParamValidator

    if model.input_shape is None:
        problems = f"takes no parameters, not {', '.join(body)}" if body else ""
    else:
        problems = ParamValidator().validate(dict(body), model.input_shape).generate_report()
    if problems:
        raise InvalidCall(f"{call.service} {call.operation}: {problems}")
