"""Which code a record of the store may name: only what the person who runs the command has named, too.

Whoever may write to a store, such as any machine of a run, can write a record that names a class, a repository or a
folder. Loading that would run their code, or read their files, with the permissions of whoever reads the record. So what
a record names is compared with the person's own words: their configuration, and `--trust KEY=VALUE`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from .errors import SkytrainError

HUB_FAMILIES = ("hf",)  # whose `name` is a repository or a folder that is read
FILES = ("loader.files.train", "loader.files.validation")  # that training and `evaluate` read
# C0 and C1 but for tab and line feed, marks that change the direction of text, and halves of characters, which no terminal takes.
CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
# What this process's person has named, as (key, value).
_trusted: set[tuple[str, str]] = set()


class Untrusted(SkytrainError):
    """A record of the store, or a plan, names code that the person who runs the command has not named."""


def trust(words: Iterable[str]) -> None:
    """Trust what a person typed as `--trust KEY=VALUE`."""
    for word in words:
        key, equals, value = word.partition("=")
        if not key or not equals:
            raise SkytrainError(f"--trust {word}: give KEY=VALUE, such as model.target=my_package.MyModel")
        _trusted.add((key, value))


def trust_settings(values: Mapping[str, Any]) -> None:
    """Trust the code that a person's own configuration names."""
    _trusted.update(named_code(values))


def forget_trust() -> None:
    """Trust nothing any more."""
    _trusted.clear()


def check_trusted(values: Mapping[str, Any], group: str, where: str) -> None:
    """Raise Untrusted if a record's settings name code, a repository or a folder that the person has not named."""
    check_named(named_code(values, f"{group}."), where)


def check_named(names: Iterable[tuple[str, str]], where: str, writer: str = "whoever can write to this store") -> None:
    """Raise Untrusted unless the person has named all of these."""
    unknown = [f"{key}={value}" for key, value in names if (key, value) not in _trusted]
    if unknown:
        options = " ".join(f"--trust {visible(word)}" for word in unknown)
        raise Untrusted(
            f"{where} names code or files that you have not named: {visible(', '.join(unknown))}\n"
            f"  if you know them, and {writer}, add: {options}"
        )


def check_words_of_file(
    values: Mapping[str, Any], words: Iterable[str], typed: Iterable[str], where: str, writer: str
) -> None:
    """Raise Untrusted if `words`, the settings that a file brings, name code that the person has not named.

    Settings under a key that the person has typed are the person's own: their words come last. What a group of settings
    names (data=..., recipe=...) is not judged: groups are read from the package and from the person's own folders.
    """
    own = _keys(typed)
    brought = [key for key in _keys(words) if not _is_under(key, own)]
    check_named([(key, value) for key, value in named_code(values) if _is_under(key, brought)], where, writer)


def _keys(words: Iterable[str]) -> list[str]:
    return [word.partition("=")[0].lstrip("+~") for word in words if "." in word.partition("=")[0]]


def _is_under(key: str, others: Iterable[str]) -> bool:
    return any(key == other or key.startswith(f"{other}.") for other in others)


def named_code(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    """Yield the settings that name code, a repository or a folder, with their keys."""
    if values.get("family") in HUB_FAMILIES:
        yield f"{prefix}name", str(values.get("name"))
    for key, value in values.items():
        if isinstance(value, Mapping):
            yield from named_code(value, f"{prefix}{key}.")
        elif isinstance(value, list | tuple):
            for each in value:
                if isinstance(each, Mapping):
                    yield from named_code(each, f"{prefix}{key}.")
                elif key == "loggers" and "." in str(each):
                    yield f"{prefix}{key}", str(each)
        elif isinstance(value, str) and (f"{prefix}{key}" in FILES or (key == "target" and "." in value)):
            yield f"{prefix}{key}", value
        elif key == "trust_remote_code" and value:
            yield f"{prefix}{key}", str(value).lower()


def visible(text: str) -> str:
    """Return text that came from a store or a model for a terminal: control characters are shown, not obeyed."""
    text = text.replace("\r\n", "\n").replace("\r", "\n")
    return CONTROL.sub(lambda found: f"\\x{ord(found[0]):02x}", text)
