"""Convert plain mappings to the schema's dataclasses; errors name the key, the value and the nearest valid one."""

from __future__ import annotations

import dataclasses
import math
import re
import types
import typing
from collections.abc import Mapping
from typing import Annotated, Any, Literal, get_args, get_origin

from .errors import ConfigError, nearest
from .other_tools import OF_ANOTHER_GROUP, meant_value, translated
from .schema import OtherKeys, Range, Unit, fields_of, groups_in, other_keys_of, tag_of
from .units import parse_count

Origins = Mapping[str, str]
MISSING = "???"  # OmegaConf's marker for a value that the user must provide


def build(schema: Any, value: Any, key: str = "", origins: Origins | None = None) -> Any:
    """Convert `value` to `schema`, which is a dataclass, a scalar, a Literal, a list or a union of these."""
    return _Builder(origins or {}).any(schema, value, key)


class _Builder:
    def __init__(self, origins: Origins) -> None:
        self.origins = origins

    def fail(self, key: str, problem: str, hint: str | None = None) -> ConfigError:
        return ConfigError(key, problem, origin=self.origin(key), hint=hint)

    def origin(self, key: str) -> str | None:
        """Return where the key, or its nearest parent with a known origin, was set."""
        while key:
            if key in self.origins:
                return self.origins[key]
            key = key.rpartition(".")[0]
        return None

    def any(self, schema: Any, value: Any, key: str) -> Any:
        if isinstance(value, str) and value == MISSING:
            raise self.fail(key, "must be given", f"add {key}=VALUE")
        if dataclasses.is_dataclass(schema) and isinstance(schema, type):
            return self.dataclass(schema, value, key)
        origin = get_origin(schema)
        if origin in (typing.Union, types.UnionType):
            return self.union(get_args(schema), value, key)
        if origin is Annotated:
            return self.annotated(schema, value, key)
        if origin is Literal:
            return self.literal(get_args(schema), value, key)
        if origin is list:
            if value is None:
                raise self.fail(key, "null is not a list", f"for an empty one: {key}=[]")
            items = value if isinstance(value, list) else [value]
            return [self.any(get_args(schema)[0], item, f"{key}[{i}]") for i, item in enumerate(items)]
        if origin is dict:
            if not isinstance(value, Mapping):
                raise self.fail(key, f"{value!r} is not a mapping")
            return {name: self.any(get_args(schema)[1], item, _join(key, str(name))) for name, item in value.items()}
        return self.scalar(schema, value, key)

    def dataclass(self, schema: type, value: Any, key: str) -> Any:
        if not isinstance(value, Mapping):
            raise self.fail(key, f"{value!r} is not a group of settings")
        hints = {field.name: field.type for field in fields_of(schema)}
        if others := other_keys_of(schema):
            value = _with_other_keys(value, hints, others)
        for name in value:
            if name not in hints:
                raise self.unknown(_join(key, str(name)), str(name), hints)
        missing = [name for name in hints if name not in value]
        if missing:
            raise self.fail(_join(key, missing[0]), "must be given", f"add {_join(key, missing[0])}=VALUE")
        return schema(**{name: self.any(hint, value[name], _join(key, name)) for name, hint in hints.items()})

    def unknown(self, key: str, name: str, known: Mapping[str, Any]) -> ConfigError:
        if "." in name:
            first, _, rest = name.partition(".")
            return self.fail(key, "no such setting", f"in a file it is `{first}:`, and below it `{rest}: VALUE`")
        guess = nearest(name, known)
        meant = OF_ANOTHER_GROUP.get(name) or (guess and _join(key.rpartition(".")[0], guess))
        similar = f"did you mean {meant}?" if meant else f"known here: {', '.join(known)}"
        return self.fail(key, "no such setting", translated(key) or similar)

    def union(self, options: tuple[Any, ...], value: Any, key: str) -> Any:
        if type(None) in options and value is None:
            return None
        options = tuple(option for option in options if option is not type(None))
        if len(options) == 1:
            return self.any(options[0], value, key)
        if all(dataclasses.is_dataclass(option) for option in options):
            return self.any(self.variant(options, value, key), value, key)
        return value

    def variant(self, options: tuple[Any, ...], value: Any, key: str) -> Any:
        """Select a group's variant by the Literal field that all variants share (`family`, `kind`, `name`)."""
        by_word: dict[str, Any] = {}
        for option in options:
            field, words = tag_of(option)
            by_word.update(dict.fromkeys(words, option))
        if not isinstance(value, Mapping) or field not in value:
            raise self.fail(key, f"needs {field}", f"one of {', '.join(by_word)}")
        return by_word[self.literal(tuple(by_word), value[field], _join(key, field))]

    def literal(self, words: tuple[Any, ...], value: Any, key: str) -> Any:
        if value not in words:
            guess = meant_value(key, str(value)) or nearest(str(value), map(str, words))
            hint = (
                f"did you mean {key}={guess}?  one of {', '.join(map(str, words))}"
                if guess
                else f"one of {', '.join(map(str, words))}"
            )
            raise self.fail(key, f"{value!r} is not a choice", hint)
        return value

    def annotated(self, schema: Any, value: Any, key: str) -> Any:
        base, *marks = get_args(schema)
        if OtherKeys() in marks:
            group = key.rpartition(".")[0]  # where the keys were written
            return {name: self.any(Any, item, _join(group, str(name))) for name, item in value.items()}
        if groups := groups_in(schema):
            return self.any(self.variant(groups, value, key), value, key)
        unit = next((mark for mark in marks if isinstance(mark, Unit)), None)
        if unit:
            try:
                value = unit.parse(value)
            except ValueError as error:
                raise self.fail(key, f"{value!r}: {error}") from None
            if isinstance(value, float):
                value = self.finite(value, key)
        else:
            value = self.scalar(base, value, key)
        for mark in marks:
            if isinstance(mark, Range):
                self.check_range(mark, value, key)
        return value

    def check_range(self, bounds: Range, value: float, key: str) -> None:
        if bounds.above is not None and not value > bounds.above:
            raise self.fail(key, f"{value!r} must be more than {bounds.above:g}")
        if bounds.min is not None and not value >= bounds.min:
            raise self.fail(key, f"{value!r} must be at least {bounds.min:g}")
        if bounds.below is not None and not value < bounds.below:
            raise self.fail(key, f"{value!r} must be less than {bounds.below:g}")
        if bounds.max is not None and not value <= bounds.max:
            raise self.fail(key, f"{value!r} must be at most {bounds.max:g}")

    def finite(self, value: float, key: str) -> float:
        """Return the number if it is finite; raise ConfigError otherwise."""
        if not math.isfinite(value):
            hint = "give a finite number; for no limit, use null where the setting takes it"
            raise self.fail(key, f"{value!r} is not a finite number", hint)
        return value

    def scalar(self, schema: type, value: Any, key: str) -> Any:
        if schema is Any:
            return value
        if schema is bool and isinstance(value, bool):
            return value
        if schema is int and isinstance(value, int) and not isinstance(value, bool):
            return value
        if schema is float and isinstance(value, (int, float)) and not isinstance(value, bool):
            return self.finite(float(value), key)
        if schema is float and isinstance(value, str):
            try:
                number = float(value)  # YAML reads 6e-4 as text
            except ValueError:
                meant = _meant_scalar(float, value)
                raise self.fail(key, f"{value!r} is not a number", meant and f"did you mean {key}={meant}?") from None
            return self.finite(number, key)
        if schema is str and isinstance(value, (str, int, float)) and not isinstance(value, bool):
            return str(value)
        words = {int: "a whole number", float: "a number", bool: "true or false", str: "text"}
        meant = _meant_scalar(schema, value)
        hint = meant and f"did you mean {key}={meant}?"
        raise self.fail(key, f"{value!r} is not {words.get(schema, schema.__name__)}", hint)


def _meant_scalar(schema: type, value: Any) -> str | None:
    """Return a value of the type that was probably meant: 1000 for 1e3 or 1k, 150 for $150, true for yes."""
    if schema is bool and isinstance(value, (str, int)):
        return {"yes": "true", "on": "true", "1": "true", "no": "false", "off": "false", "0": "false"}.get(
            str(value).lower()
        )
    if schema not in (int, float) or isinstance(value, bool) or not isinstance(value, (str, float)):
        return None
    try:
        return str(parse_count(value)) if isinstance(value, float) else meant_number(value)
    except ValueError:
        return None


def meant_number(text: str) -> str | None:
    """Return the number in a sum of money or a count: 150 of $150, 150$ and 150 USD, 1000 of 1,000 and 1k."""
    plain = re.sub(r"\$|usd|dollars?", "", text.lower()).strip()
    if re.fullmatch(r"\d{1,3}(,\d{3})+(\.\d+)?", plain):
        plain = plain.replace(",", "")
    elif re.fullmatch(r"\d+,\d{1,2}", plain):
        plain = plain.replace(",", ".")
    try:
        return str(parse_count(plain))
    except ValueError:
        return plain if re.fullmatch(r"\d+\.\d+", plain) else None


def is_text(schema: Any, key: str) -> bool:
    """Return whether the setting with this dotted key can only be text or null."""
    types_of_key = _types_of(schema, key)
    return bool(types_of_key) and all(each in (str, str | None) for each in types_of_key)


def holds_text(schema: Any, key: str) -> bool:
    """Return whether the setting with this dotted key, or entries of it, may be any text: not a number or a choice.

    Entries of mappings, which the schema does not name, may be.
    """
    types_of_key = _types_of(schema, key)
    return not types_of_key or any(map(_takes_text, types_of_key))


def _takes_text(schema: Any) -> bool:
    origin = get_origin(schema)
    if origin in (typing.Union, types.UnionType, list, dict, Annotated):
        return any(_takes_text(each) for each in get_args(schema)[: 1 if origin is Annotated else None])
    return schema in (str, Any)


def is_list(schema: Any, key: str) -> bool:
    """Return whether the setting with this dotted key may be a list."""
    return list in _kinds(schema, key)


def is_number(schema: Any, key: str) -> bool:
    """Return whether the setting with this dotted key is a number or null."""
    kinds = _kinds(schema, key)
    return bool(kinds & {int, float}) and not kinds & {list, str}


def _kinds(schema: Any, key: str) -> set[Any]:
    """Return the plain types that the setting with this dotted key may have: `float` of a share of one."""
    kinds = set[Any]()
    types_of_key = list(_types_of(schema, key))
    while types_of_key:
        each = types_of_key.pop()
        origin = get_origin(each)
        if origin is Annotated:
            types_of_key.append(get_args(each)[0])
        elif origin in (typing.Union, types.UnionType):
            types_of_key += get_args(each)
        else:
            kinds.add(origin or each)
    return kinds


def may_be_null(schema: Any, key: str) -> bool:
    """Return whether the setting or group with this dotted key may be null."""
    return any(type(None) in get_args(each) for each in _types_of(schema, key))


def names_other_variant(schema: Any, key: str, present: Mapping[str, Any], value: Mapping[str, Any]) -> bool:
    """Return whether `value` is of another variant of the group at this dotted key than `present`: its keys then do not mix."""
    groups = [group for each in _types_of(schema, key) for group in groups_in(each)]
    if len(groups) < 2:
        return False
    tag = tag_of(groups[0])[0]
    return tag in value and value[tag] != present.get(tag)


def _types_of(schema: Any, key: str) -> list[Any]:
    """Return the types of a dotted key: several where variants of a group have it."""
    types_of_key = [schema]
    for name in key.split("."):
        groups = [group for each in types_of_key for group in groups_in(each)]
        types_of_key = [field.type for group in groups for field in fields_of(group) if field.name == name]
    return types_of_key


def _with_other_keys(value: Mapping[str, Any], known: Mapping[str, Any], others: str) -> dict[str, Any]:
    """Return the mapping with all keys that are not fields moved into the field `others`."""
    moved = {name: item for name, item in value.items() if name not in known or name == others}
    return {**{name: item for name, item in value.items() if name not in moved}, others: moved}


def _join(prefix: str, name: str) -> str:
    return f"{prefix}.{name}" if prefix else name
