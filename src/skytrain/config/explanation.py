"""Meaning, type and default of each setting and the files that set it.

Used by `skytrain config explain` and docs/settings.md.
"""

from __future__ import annotations

import inspect
import types
import typing
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from importlib.resources import files
from typing import Annotated, Any, Literal, get_args, get_origin, get_type_hints

from .composition import FREE_KEYS, GROUPS, compose
from .errors import ConfigError, nearest
from .group_files import GROUPS_MODULE, file_settings
from .other_tools import translated
from .plugins import load_class
from .schema import Config, Declared, flatten, tag_of
from .schema.kinds import OneOf, Range, Unit
from .schema.walk import fields_of, groups_in
from .upgrades import RENAMED


@dataclass(frozen=True)
class Variant:
    """One variant of a group and the setting that selects it: `optimizer.name` is `adamw`."""

    key: str
    names: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.key}={', '.join(self.names)}"


@dataclass(frozen=True)
class Explained:
    """One setting, as one variant of its group declares it."""

    key: str
    declared: Declared
    type: str
    variant: Variant | None  # None if the group has only one variant


@dataclass(frozen=True)
class Section:
    """A group of settings, or one variant of it."""

    key: str
    meaning: str
    variant: Variant | None
    settings: tuple[Explained, ...]


@cache
def all_sections() -> tuple[Section, ...]:
    """Return every group in schema order, starting with the top-level settings."""
    return tuple(_sections(Config, "", None))


def explain(key: str) -> list[Explained] | list[Section]:
    """Return a setting as each variant of its group declares it, or the sections of a group.

    Raises ConfigError, suggesting the nearest name, if `key` is neither.
    """
    key = key.replace("/", ".")
    key = RENAMED.get(key, key)
    if settings := _settings().get(key):
        return _without_repeats(settings)
    if sections := [one for one in all_sections() if one.key == key or one.key.startswith(f"{key}.")]:
        return sections
    if free := next((name for name in FREE_KEYS if key.startswith(f"{name}.")), None):
        holder = replace((_settings().get(free) or _settings()[f"{free}.args"])[0], key=key)
        return _arguments(holder) or [holder]
    same_name = [name for name in _settings() if name.rpartition(".")[2] == key.rpartition(".")[2]]
    guess = same_name[0] if same_name else nearest(key, [*_settings(), *(one.key for one in all_sections())])
    similar = f"did you mean {guess}?" if guess else "`skytrain config show` lists every setting"
    hint = translated(key) or similar
    raise ConfigError(key, "no such setting", hint=hint)


def _arguments(holder: Explained) -> list[Explained]:
    """Return an argument of plugged-in classes, as declared by each class that a built-in file selects.

    Empty if no file sets it.
    """
    group, _, name = holder.key.rpartition(".")
    chosen = (leaves.get(f"{group}.target") for leaves in _group_files().values() if holder.key in leaves)
    arguments = []
    for target in dict.fromkeys(each for each in chosen if each):
        cls = load_class(target, f"{group}.target")
        words = " ".join((inspect.getdoc(cls) or "").split())
        declared = replace(holder.declared, meaning=f"Argument of {cls.__name__}: {words}")
        kind = type_in_words(get_type_hints(cls).get(name, Any))
        arguments.append(Explained(holder.key, declared, kind, Variant(f"{group}.target", (target,))))
    return arguments


def default_of(setting: Explained) -> tuple[Any, str] | None:
    """Return the default value and the file that sets it; a non-default variant has the value of its own file."""
    values, origins = _defaults()
    form = setting.variant
    if setting.key in values and (form is None or values[form.key] in form.names):
        return values[setting.key], origins[setting.key]
    for file, leaves in _group_files().items():
        if setting.key in leaves and form is not None and leaves.get(form.key) in form.names:
            return leaves[setting.key], file
    return None


def set_by(key: str) -> dict[str, Any]:
    """Return the built-in files that set the key, with their values."""
    return {file: leaves[key] for file, leaves in _group_files().items() if key in leaves}


def complete(word: str) -> list[str]:
    """Return what a half-typed setting may become: `recipe=quickstart` of a group, or a key with its `=`."""
    choices = [choice for group in GROUPS for choice in _choices(group)]
    keys = [f"{key}=" for key in _settings()]
    return [each for each in (*choices, *sorted(keys)) if each.startswith(word)]


def group_choices(section: Section) -> list[str]:
    """Return the names that select a file of the section's group; empty except for the group's first section."""
    group = section.key.replace(".", "/")
    if group not in GROUPS or section != next(one for one in all_sections() if one.key == section.key):
        return []
    return _choices(group)


def _choices(group: str) -> list[str]:
    names = (file.name for file in files(GROUPS_MODULE).joinpath(group).iterdir() if file.name.endswith(".yaml"))
    return sorted(
        f"{group}={name.removesuffix('.yaml')}" for name in names if not name.startswith("_")
    )  # a file that others inherit from


def _sections(group: type, key: str, variant: Variant | None) -> Iterator[Section]:
    fields = fields_of(group)
    prefix = f"{key}." if key else ""
    own = tuple(
        Explained(f"{prefix}{field.name}", field.declared, type_in_words(field.type), variant)
        for field in fields
        if field.declared is not None
    )
    if own:
        yield Section(key, " ".join((group.__doc__ or "").split()), variant, own)
    for field in fields:
        for inside in field.groups:
            at = f"{prefix}{field.name}"
            tag, words = tag_of(inside) if len(field.groups) > 1 else ("", ())
            yield from _sections(inside, at, Variant(f"{at}.{tag}", words) if words else variant)


@cache
def _settings() -> dict[str, list[Explained]]:
    by_key: dict[str, list[Explained]] = {}
    for section in all_sections():
        for setting in section.settings:
            by_key.setdefault(setting.key, []).append(setting)
    return by_key


def _without_repeats(settings: list[Explained]) -> list[Explained]:
    """Merge variants that declare a setting identically."""
    merged: dict[tuple[Declared, str], Explained] = {}
    for one in settings:
        known = merged.setdefault((one.declared, one.type), one)
        if known is not one and known.variant and one.variant:
            both = Variant(known.variant.key, (*known.variant.names, *one.variant.names))
            merged[one.declared, one.type] = replace(known, variant=both)
    return list(merged.values())


@cache
def _defaults() -> tuple[Mapping[str, Any], Mapping[str, str]]:
    composed = compose()
    return flatten(composed.values), composed.origins


@cache
def _group_files() -> dict[str, Mapping[str, Any]]:
    """Return the settings of each built-in file by their full keys."""
    settings: dict[str, Mapping[str, Any]] = {}
    root = files(GROUPS_MODULE)
    for group in ("", *GROUPS):
        folder = root.joinpath(group) if group else root
        for file in sorted(folder.iterdir(), key=lambda file: file.name):
            if file.name.endswith(".yaml"):
                name = f"{group}/{file.name}" if group else file.name
                settings[name] = file_settings(name)
    return settings


# A type in words.

WORDS = {bool: "true or false", int: "whole number", float: "number", str: "text"}


def type_in_words(schema: Any) -> str:
    """Return a type in words: `whole number, at least 1, or null` for `Positive | None`."""
    origin = get_origin(schema)
    args = get_args(schema)
    if origin in (typing.Union, types.UnionType):
        return _union(args)
    if origin is Annotated:
        return _marked(args[0], args[1:])
    if origin is Literal:
        return " | ".join(f"`{word}`" for word in args)
    if origin in (list, Sequence):
        return f"list of: {type_in_words(args[0])}"
    if origin is dict:
        return f"mapping of names to: {type_in_words(args[1])}" if args[1] is not Any else "mapping"
    if groups_in(schema):
        return f"mapping with {', '.join(field.name for field in fields_of(schema))}"
    return WORDS.get(schema, "any value")


def _union(options: tuple[Any, ...]) -> str:
    words = ["null" if option is type(None) else type_in_words(option) for option in options]
    if groups_in(options[0]):
        words = ["group of settings", *words[-1:]] if words[-1] == "null" else ["group of settings"]
    return ", or ".join(words)


def _marked(base: Any, marks: tuple[Any, ...]) -> str:
    if any(isinstance(mark, OneOf) for mark in marks):
        return "group of settings"
    unit = next((mark.form for mark in marks if isinstance(mark, Unit)), None)
    bounds = [_range(mark) for mark in marks if isinstance(mark, Range) and not (unit and mark == Range(min=0))]
    return ", ".join([unit or type_in_words(base), *bounds])


def _range(bounds: Range) -> str:
    if bounds.above is not None:
        return f"above {bounds.above:g}"
    if bounds.min is not None and bounds.max is not None:
        return f"{bounds.min:g} to {bounds.max:g}"
    if bounds.min is not None and bounds.below is not None:
        return f"{bounds.min:g} to below {bounds.below:g}"
    return f"at least {bounds.min:g}" if bounds.min is not None else f"at most {bounds.max:g}"
