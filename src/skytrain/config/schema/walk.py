"""The schema's types: which groups a field may hold, and which settings of a mapping decide something."""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Callable, Collection, Iterator, Mapping
from functools import cache
from typing import Annotated, Any, Literal, get_args, get_origin

from .declare import Decides, Declared, declared
from .kinds import OneOf, OtherKeys


@dataclasses.dataclass(frozen=True)
class Field:
    """One field of a group: its annotated type, and its declaration (None for a nested group)."""

    name: str
    type: Any
    declared: Declared | None
    groups: tuple[type, ...]  # the groups that it may hold


@cache
def fields_of(group: type) -> tuple[Field, ...]:
    """Return the fields of a group in the order of their declaration."""
    hints = typing.get_type_hints(group, include_extras=True)
    return tuple(
        Field(
            name=each.name,
            type=hints[each.name],
            declared=declared(each),
            groups=groups_in(hints[each.name]),
        )
        for each in dataclasses.fields(group)
    )


def groups_in(schema: Any) -> tuple[type, ...]:
    """Return the groups among the options of a type: several if variants share a key, none for plain values."""
    if get_origin(schema) in (typing.Union, types.UnionType):
        return tuple(group for option in get_args(schema) for group in groups_in(option))
    if get_origin(schema) is Annotated:
        return next((mark.groups for mark in get_args(schema) if isinstance(mark, OneOf)), ())
    return (schema,) if isinstance(schema, type) and dataclasses.is_dataclass(schema) else ()


def other_keys_of(group: type) -> str | None:
    """Return the field that takes all keys without a field, or None if the group has no such field."""
    marked = (each for each in fields_of(group) if OtherKeys() in get_args(each.type))
    return next((each.name for each in marked), None)


def tag_of(group: type) -> tuple[str, tuple[str, ...]]:
    """Return the field in which variants of one key differ (`family`, `kind`, `name`), and its words for this one."""
    return next((each.name, get_args(each.type)) for each in fields_of(group) if get_origin(each.type) is Literal)


def select(schema: Any, values: Mapping[str, Any], what: Collection[Decides]) -> dict[str, Any]:
    """Return the part of a plain mapping that decides `what`, in the same shape, without keys that the schema lacks."""
    return _select(groups_in(schema), values, what)


def flatten(values: Any, prefix: str = "") -> dict[str, Any]:
    """Return nested mappings as dotted leaves, in order."""
    if not isinstance(values, Mapping) or not values:
        return {prefix: values} if prefix else {}
    leaves: dict[str, Any] = {}
    for name, value in values.items():
        leaves.update(flatten(value, f"{prefix}.{name}" if prefix else str(name)))
    return leaves


def _select(groups: tuple[type, ...], values: Mapping[str, Any], what: Collection[Decides]) -> dict[str, Any]:
    selected: dict[str, Any] = {}
    for field in _fields_for(groups, values):
        if field.name not in values:
            continue
        value = values[field.name]
        if field.groups and isinstance(value, Mapping):
            if inside := _select(field.groups, value, what):
                selected[field.name] = inside
        elif field.declared is not None and field.declared.decides in what:
            selected[field.name] = value
    return selected


def _fields_for(groups: tuple[type, ...], values: Mapping[str, Any]) -> Iterator[Field]:
    """Yield the fields of the variant that the values are of; of all variants where they do not say."""
    seen: set[str] = set()
    for group in _variants(groups, values):
        for field in fields_of(group):
            if field.name not in seen:
                seen.add(field.name)
                yield field


def _variants(groups: tuple[type, ...], values: Mapping[str, Any]) -> tuple[type, ...]:
    """Return the variant that the values are of, or all of them where they do not say."""
    if len(groups) <= 1:
        return groups
    tagged = [(group, *tag_of(group)) for group in groups]
    return tuple(group for group, name, words in tagged if values.get(name) in words) or groups


def fill(schema: Any, values: Mapping[str, Any], find: Callable[[type, str, str], Any]) -> dict[str, Any]:
    """Return a plain mapping with values for settings that it lacks.

    `find` gets the group, the field's name and its dotted key, and returns a value, or dataclasses.MISSING for none.
    """
    return _fill(groups_in(schema), values, find, "")


def _fill(
    groups: tuple[type, ...], values: Mapping[str, Any], find: Callable[[type, str, str], Any], prefix: str
) -> dict[str, Any]:
    filled = dict(values)
    variants = _variants(groups, values)
    if len(variants) != 1:
        return filled
    for field in fields_of(variants[0]):
        key = f"{prefix}{field.name}"
        if field.name not in filled:
            value = find(variants[0], field.name, key)
            if value is dataclasses.MISSING:
                continue
            filled[field.name] = value
        if field.groups and isinstance(filled[field.name], Mapping):
            filled[field.name] = _fill(field.groups, filled[field.name], find, f"{key}.")
    return filled
