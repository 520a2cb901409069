"""Secrets: how they are recognised in settings, which refuse them, and how they are kept out of what is written.

`cloud.secrets` has names only: {HF_TOKEN: skytrain/hf}. `aws/secrets.py` reads the values, into the environment of
the job's processes and nowhere else.
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from html import escape
from typing import Any
from urllib.parse import quote, quote_plus

from .environment import set_variables, variable
from .errors import ConfigError

MASK = "****"
SECRET_NAME = re.compile(
    r"password|passwd|secret|credential|private_?key|access_?key|api_?key|auth_?token|_token$|^token$", re.I
)
# Names of tokens of a vocabulary, which are not secrets.
VOCABULARY = re.compile(
    r"(^|_)(bos|eos|pad|unk|sep|cls|mask|begin|end|start|stop|special|prefix|suffix|middle)_token$", re.I
)
# Credentials recognisable by their form: AWS access keys, tokens of Hugging Face, GitHub, GitLab, OpenAI, Anthropic,
# W&B and Slack, private keys, passwords in URLs.
SECRET_VALUE = re.compile(
    r"\b(?:AKIA|ASIA)[A-Z0-9]{16}\b|\bhf_[A-Za-z0-9]{30,}|\bgh[pousr]_[A-Za-z0-9]{36,}|\bgithub_pat_\w{22,}"
    r"|\bglpat-[\w-]{20,}|\bsk-[\w-]{20,}|\bwandb_v1_\w{20,}|\bxox[abprs]-[\w-]{10,}"
    r"|-----BEGIN [A-Z ]*PRIVATE KEY-----|(?<=://)[^\s/:@]+:[^\s/@]+(?=@)"
)
# In lines of shell and arguments of programs, which groups of settings have that say where a job runs: NAME=VALUE and
# --name VALUE, but for what the shell itself fills in.
LINES = ("cloud", "serve", "spark")
ASSIGNED = re.compile(r"""(?:\b(\w+)=|--([\w-]+)(?:=|\s+(?!-)))(?!["']?[$`])\S""")
VARIABLE_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
PLACE = re.compile(r"ssm:/?[\w./-]+|[\w/+=.@-]+(#[^#]+)?|arn:[\w-]+:secretsmanager:[\w:/+=.@-]+(#[^#]+)?")
NAMES_VARIABLE = "SKYTRAIN_SECRETS"  # names of this process's variables that hold secrets
SHORTEST = 6  # of a value that is masked: a shorter one would mask ordinary words


def check_settings(values: Mapping[str, Any], origins: Mapping[str, str]) -> None:
    """Raise ConfigError for a setting that holds a secret: settings are recorded, and sent to machines as they are."""
    places = {f"cloud.secrets.{name}": place for name, place in (values["cloud"].get("secrets") or {}).items()}
    for key, place in places.items():
        name = key.removeprefix("cloud.secrets.")
        if SECRET_VALUE.search(str(place)) or not PLACE.fullmatch(str(place)):
            hint = f"write where it is kept: {key}=skytrain/hf of Secrets Manager, or {key}=ssm:/skytrain/hf"
            raise ConfigError(key, "is not the name of a secret", origin=origins.get(key), hint=hint)
        if not VARIABLE_NAME.fullmatch(name):
            raise ConfigError(key, f"{name!r} is not the name of an environment variable", origin=origins.get(key))
    for key, value in _texts(values):
        if key not in places and _looks_secret(key, value):
            name = _variable_name(key)
            raise ConfigError(
                key,
                "looks like a secret: settings are recorded in the store, and everybody who may describe a machine reads them",
                origin=origins.get(key),
                hint=f"keep it in Secrets Manager, and set cloud.secrets.{name}=NAME: the job finds it in ${name}. "
                f"On this computer: export {name}=...",
            )


def _texts(value: Any, key: str = "") -> Iterator[tuple[str, str]]:
    """Yield the key and the value of every text, also of those in lists."""
    if isinstance(value, str) and value:
        yield key, value
    elif isinstance(value, Mapping):
        for name, item in value.items():
            yield from _texts(item, f"{key}.{name}" if key else str(name))
    elif isinstance(value, list):
        for item in value:
            yield from _texts(item, key)
        if len(value) > 1 and all(isinstance(item, str) for item in value):  # --name and its value are two of them
            yield key, " ".join(value)


def _looks_secret(key: str, value: str) -> bool:
    group, *inner = key.split(".")
    names = inner[-1:] or [group]
    if group in LINES:
        names += inner[1:]  # of a property such as spark.hadoop.fs.s3a.secret.key, any part
        names += [(found[1] or found[2]).replace("-", "_") for found in ASSIGNED.finditer(value)]
    return bool(SECRET_VALUE.search(value) or any(map(_names_secret, names)))


def _names_secret(name: str) -> bool:
    return bool(SECRET_NAME.search(name) and not VOCABULARY.search(name))


def _variable_name(key: str) -> str:
    return re.sub(r"\W", "_", key.rpartition(".")[2]).upper()


def secret_variables(values: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of a process that gets these secrets: their values, and which variables have them."""
    return {**values, NAMES_VARIABLE: ",".join(sorted(values))} if values else {}


def hold_secrets(values: Mapping[str, str]) -> None:
    """Set the variables in this process, for its libraries and its children."""
    set_variables(secret_variables(values))


def without_secrets(text: str, values: Mapping[str, str] | None = None) -> str:
    """Return the text with the values of secrets masked: the given ones, or those that this process holds."""
    if values is None:
        names = (variable(NAMES_VARIABLE) or "").split(",")
        values = {name: variable(name) or "" for name in names if name}
    for spelling in sorted({each for value in values.values() for each in _spellings(value)}, key=len, reverse=True):
        if len(spelling) >= SHORTEST:
            text = text.replace(spelling, MASK)
    return text


@functools.cache  # every line that is logged asks for them
def _spellings(value: str) -> tuple[str, ...]:
    """Return the texts by which a secret may be printed: whole, line by line, quoted, and the values of a JSON object."""
    parts = [value, *value.splitlines()]
    with suppress(ValueError, RecursionError):
        parts += [text for _, text in _texts(json.loads(value))]
    return tuple({spelling for part in parts for spelling in _written(part)})


def _written(part: str) -> tuple[str, ...]:
    """Return the ways in which Python, JSON, addresses and pages write a text."""
    python = (repr(part)[1:-1], ascii(part)[1:-1], repr(part.encode(errors="replace"))[2:-1])
    addresses = (
        quote(part, safe="", errors="replace"),
        quote(part, errors="replace"),
        quote_plus(part, errors="replace"),
    )
    return (part, *python, json.dumps(part)[1:-1], *addresses, escape(part))
