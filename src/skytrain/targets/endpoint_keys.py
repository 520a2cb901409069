"""The API key of an endpoint on a rented machine: an encrypted parameter, which only machines that serve may read."""

from __future__ import annotations

from ..aws import AwsSession, Call, Tags
from .ec2.requests import group_name


def key_parameter(project: str, run: str, launch: str) -> str:
    """Return the name of the parameter, which no other launch has. The role of serving machines reads below its path."""
    return f"/skytrain/{project}/serve/{group_name(project, run, launch, 0)}/api_key"


def put_key(name: str, value: str, tags: Tags, kms_key: str | None) -> Call:
    """Return the request that stores the key. `--dry-run` masks its value."""
    encrypted = {"KeyId": kms_key} if kms_key else {}
    text = "API key of an endpoint of Skytrain"
    return Call(
        "ssm",
        "PutParameter",
        {"Name": name, "Value": value, "Type": "SecureString", "Description": text, "Tags": tags.pairs(), **encrypted},
    )


def delete_key(name: str) -> Call:
    return Call("ssm", "DeleteParameter", {"Name": name})


def read_key(session: AwsSession, name: str) -> str:
    """Return the key, decrypted."""
    found = session.perform(Call("ssm", "GetParameter", {"Name": name, "WithDecryption": True}))
    return str(found["Parameter"]["Value"])
