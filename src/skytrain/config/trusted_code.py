"""Which code a record of the store may name: only what the person who runs the command has named, too.

Whoever may write to a store, such as any machine of a run, can write a record that names a class, a repository or a
folder. Loading that would run their code, or read their files, with the permissions of whoever reads the record. So what
a record names is compared with the person's own words: their configuration, and `--trust KEY=VALUE`.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any

from .errors import SkytrainError
from .schema import Config, flatten
from .typed import holds_text

HUB_FAMILIES = ("hf",)  # whose `name` is a repository or a folder that is read
FILES = ("loader.files.train", "loader.files.validation")  # that training and `evaluate` read
# Where a run writes, and removes what it wrote; whose key encrypts it, without which nobody can read it; and who else sees
# its metrics and texts.
WRITTEN = (
    *("store.root", "store.kms_key", "loader.cache_dir", "parallel.offload_folder"),
    *("wandb.entity", "metrics.prometheus_address"),
)
# By such a setting, of any group, dollars of a budget are counted: with a low one, machines would run long after it is spent.
PRICE = "usd_per_hour"
DEFAULT_REVISION = "main"  # of a repository whose revision nobody names
# Groups that say where a job runs, from which image, with which packages and whose rights. What their settings of text hold
# counts as code, whatever it looks like: a package may be called 7z, and a text may be typed as a number.
PLACES = ("cloud", "serve", "spark")
HARMLESS = tuple(
    f"cloud.{name}" for name in ("account", "instance_families", "owner", "project", "region", "reservation")
)
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
        options = " ".join(f"--trust {shlex.quote(visible(word))}" for word in unknown)  # people paste it into a shell
        raise Untrusted(
            f"{where} names code or files that you have not named: {visible(', '.join(unknown))}\n"
            f"  if you know them, and {writer}, add: {options}"
        )


def check_brought(
    values: Mapping[str, Any], brought: Mapping[str, Any], own: Collection[str], where: str, writer: str
) -> None:
    """Raise Untrusted if `brought`, the settings that a file makes by key, name code that the person has not named.

    Settings under a key of `own`, which the person has typed, are the person's own: their words come last. A mapping that
    is typed leaves what else the file has put there, so that entries count one by one. What a group of settings names
    (data=..., recipe=...) is not judged: groups are read from the package and from the person's own folders.
    An interpolation counts as code: it can bring in any other setting, or a variable of this process. So does nothing in
    place of texts that say where a job runs: it can take away the limit of a role, a key, or what a role is allowed.
    """
    theirs = {key: value for key, value in flatten(brought).items() if not _is_under(key, own)}
    named = [(key, value) for key, value in named_code(values) if _is_under(key, theirs)]
    prices = [key for key in flatten(values) if key.rpartition(".")[2] == PRICE]
    named += [(key, str(_at(values, key))) for key in (*WRITTEN, *prices) if _is_under(key, theirs)]
    named += [
        (key, str(value)) for key, value in theirs.items() if value in (None, "", [], {}) and _is_code(key, value)
    ]
    named += [(key, text) for key, value in theirs.items() for text in _texts(value) if "${" in text]
    check_named(dict.fromkeys(named), where, writer)


def _at(values: Any, key: str) -> Any:
    for name in key.split("."):
        values = values.get(name) if isinstance(values, Mapping) else None
    return values


def _texts(value: Any) -> Iterator[str]:
    """Yield all texts in a value, names of mappings included."""
    if isinstance(value, Mapping):
        for name, item in value.items():
            yield from (*_texts(name), *_texts(item))
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _texts(item)
    elif isinstance(value, str):
        yield str(value)


def _is_under(key: str, others: Iterable[str]) -> bool:
    return any(key == other or key.startswith(f"{other}.") for other in others)


def named_code(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    """Yield the settings that name code, a repository or a folder, with their keys."""
    if values.get("family") in HUB_FAMILIES:
        yield f"{prefix}name", str(values.get("name"))
        revision = values.get("revision")
        if revision is not None or values.get("trust_remote_code"):  # anybody can propose code to a repository
            yield f"{prefix}revision", str(DEFAULT_REVISION if revision is None else revision)
    for key, value in values.items():
        whole = f"{prefix}{key}"
        for each in value if isinstance(value, list | tuple) else [value]:
            if isinstance(each, Mapping):
                yield from named_code(each, f"{whole}.")
            elif key == "trust_remote_code" and each:
                yield whole, str(each).lower()
            elif each not in (None, "") and _is_code(whole, each):
                yield whole, str(each)


def _is_code(key: str, value: Any) -> bool:
    name = key.rpartition(".")[2]
    if name in ("target", "loggers"):  # a name without a dot is one of Skytrain's own
        return isinstance(value, str) and "." in value
    if name == "endpoint":  # of a hub, which is sent the person's token
        return True
    in_place = key.partition(".")[0] in PLACES and key not in HARMLESS
    return key in FILES or (in_place and holds_text(Config, key))


def visible(text: str) -> str:
    """Return text that came from a store or a model for a terminal: control characters are shown, not obeyed."""
    text = text.replace("\r\n", "\n").replace("\r", "\n")
    return CONTROL.sub(lambda found: f"\\x{ord(found[0]):02x}", text)
