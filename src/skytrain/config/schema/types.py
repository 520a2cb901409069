"""A field's type in words, for `skytrain config explain` and docs/settings.md."""

from __future__ import annotations

import types
import typing
from collections.abc import Sequence
from typing import Annotated, Any, Literal, get_args, get_origin

from .kinds import OneOf, Range, Unit
from .walk import fields_of, groups_in

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
    return f"at least {bounds.min:g}" if bounds.min is not None else f"at most {bounds.max:g}"
