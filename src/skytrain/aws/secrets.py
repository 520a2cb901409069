"""The secrets of a job, by the names in `cloud.secrets`: from the environment, a keyring, Secrets Manager or SSM."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from importlib import import_module
from importlib.util import find_spec

from ..config import Config, hold_secrets, variable
from .calls import Call
from .errors import CloudError
from .session import AwsSession, open_session

SSM = "ssm:"
KEYRING_SERVICE = "skytrain"


def take_secrets(config: Config) -> None:
    """Set the variables of `cloud.secrets` in this process, for its libraries and its children."""
    hold_secrets(read_secrets(config))


def read_secrets(config: Config, open: Callable[[str | None], AwsSession] = open_session) -> dict[str, str]:
    """Return the value of each variable of `cloud.secrets`.

    A variable that is set already stays as it is, and a keyring of this computer comes next. Only where cloud.target
    names a target is AWS asked, with the role of the machine. Raises CloudError for a secret that nobody has.
    """
    found: dict[str, str] = {}
    session: AwsSession | None = None
    for name, place in sorted(config.cloud.secrets.items()):
        value = variable(name) or _from_keyring(name)
        if value is None and config.cloud.target is not None:
            session = session or open(config.cloud.region)
            value = _from_aws(session, name, place)
        if not value:
            raise CloudError(
                f"cloud.secrets.{name}: this computer does not have the secret",
                fix=f"export {name}=..., or keep it in your keyring: keyring set {KEYRING_SERVICE} {name}",
            )
        found[name] = value
    return found


def find_secret(session: AwsSession, place: str) -> None:
    """Raise CloudError if AWS does not have the secret. Its value is not read."""
    if not place.startswith(SSM):
        session.perform(Call("secretsmanager", "DescribeSecret", {"SecretId": place.partition("#")[0]}))
        return
    named = {"ParameterFilters": [{"Key": "Name", "Values": [place.removeprefix(SSM)]}]}
    if not session.perform(Call("ssm", "DescribeParameters", named))["Parameters"]:
        name = place.removeprefix(SSM)
        raise CloudError(
            f"there is no parameter {name} in {session.region}",
            fix=f"aws ssm put-parameter --type SecureString --name {name} --value file://FILE",
        )


def _from_keyring(name: str) -> str | None:
    """Return what the keyring of this computer has, where the library `keyring` is installed."""
    if find_spec("keyring") is None:
        return None
    keyring = import_module("keyring")
    try:
        value: str | None = keyring.get_password(KEYRING_SERVICE, name)
    except keyring.errors.KeyringError:  # no keyring here, as on most servers, or a locked one
        return None
    return value


def _from_aws(session: AwsSession, name: str, place: str) -> str:
    try:
        if place.startswith(SSM):
            asked = {"Name": place.removeprefix(SSM), "WithDecryption": True}
            return str(session.perform(Call("ssm", "GetParameter", asked))["Parameter"]["Value"])
        secret, _, key = place.partition("#")
        answer = session.perform(Call("secretsmanager", "GetSecretValue", {"SecretId": secret}))
    except CloudError as error:
        raise CloudError(
            f"cloud.secrets.{name}: {error.problem}",
            fix=f"create {place} in {session.region}, and list it in `secrets` of infra/terraform/base: "
            "machines read only what is listed there",
            cause=error.cause,
            code=error.code,
        ) from error
    return _chosen(name, place, key, answer.get("SecretString"))


def _chosen(name: str, place: str, key: str, text: str | None) -> str:
    """Return the whole text of a secret, or one value of one that is a JSON object, as the console makes them."""
    if text is None:
        raise CloudError(f"cloud.secrets.{name}: {place} is binary", fix="store it as text")
    try:
        values = json.loads(text)
    except ValueError:
        values = None
    if not isinstance(values, Mapping) and not key:
        return text
    if not isinstance(values, Mapping) or not isinstance(values.get(key), str):
        names = ", ".join(map(str, values)) if isinstance(values, Mapping) else "none"
        raise CloudError(
            f"cloud.secrets.{name}: {place} has no text of that key; its keys: {names}",
            fix=f"choose one: cloud.secrets.{name}={place.partition('#')[0]}#KEY",
        )
    return str(values[key])
