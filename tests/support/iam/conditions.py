"""IAM's condition block: operators, `IfExists`, `ForAllValues`, `ForAnyValue`, `Null` and policy variables.

Written from "IAM JSON policy elements: Condition" of the IAM user guide. An operator that is not known here is an
error, never a silent answer.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Mapping, Sequence
from functools import cache

Context = Mapping[str, str | Sequence[str]]
_VARIABLE = re.compile(r"\$\{([^}]*)\}")
_NEGATED = re.compile(r"Not")


class UnknownVariable(Exception):
    """A policy variable without a value in the request: what contains it matches nothing."""


def conditions_hold(block: Mapping[str, Mapping[str, str | list[str]]], context: Context) -> bool:
    """Every operator and every key must hold."""
    lowered = {key.lower(): value for key, value in context.items()}
    return all(
        _holds(name, [wanted] if isinstance(wanted, str) else wanted, lowered.get(key.lower()), lowered)
        for name, keys in block.items()
        for key, wanted in keys.items()
    )


def _holds(name: str, wanted: list[str], found: str | Sequence[str] | None, context: Context) -> bool:
    quantifier, _, rest = name.rpartition(":")
    base = rest.removesuffix("IfExists")
    if base == "Null":
        return all((found is None) == (each == "true") for each in wanted)
    if base not in _OPERATORS:
        raise NotImplementedError(f"condition operator {name}")
    if found is None:
        # ForAllValues of nothing is true; a missing key fails any other operator, except negated ones.
        return (
            rest.endswith("IfExists")
            or quantifier == "ForAllValues"
            or (not quantifier and bool(_NEGATED.search(base)))
        )
    values = [found] if isinstance(found, str) else list(found)
    if not quantifier and len(values) != 1:
        raise ValueError(f"{name} on a key with {len(values)} values: IAM wants ForAllValues or ForAnyValue")
    test = lambda value: _one_value(base, value, wanted, context)  # noqa: E731
    return any(map(test, values)) if quantifier == "ForAnyValue" else all(map(test, values))


def _one_value(base: str, value: str, wanted: list[str], context: Context) -> bool:
    matches, negated = _OPERATORS[base]
    found = any(_matches(matches, value, each, context) for each in wanted)
    return found != negated


def _matches(matches: Callable[[str, str], bool], value: str, wanted: str, context: Context) -> bool:
    try:
        return matches(value, _substituted(wanted, context))
    except UnknownVariable:
        return False


def _substituted(text: str, context: Context) -> str:
    """The text with its policy variables replaced by what they stand for in this request."""
    lowered = {key.lower(): value for key, value in context.items()}

    def value(match: re.Match[str]) -> str:
        if match[1] in ("*", "?", "$"):
            return _escape(match[1])
        name, _, default = (part.strip() for part in match[1].partition(","))
        found = lowered.get(name.lower(), default.strip("'") or None)
        if not isinstance(found, str):
            raise UnknownVariable(name)
        return _escape(found)

    return _VARIABLE.sub(value, text)


def substituted(text: str, context: Context) -> str:
    """As above, for elements other than conditions."""
    return _substituted(text, context)


_ESCAPED = {"*": "\ue000", "?": "\ue001"}  # private characters: a wildcard that came out of a variable is none


def _escape(text: str) -> str:
    return "".join(_ESCAPED.get(char, char) for char in text)


def _literal(text: str) -> str:
    return text.replace("\ue000", "*").replace("\ue001", "?")


@cache
def _pattern(glob: str) -> re.Pattern[str]:
    special = {"*": ".*", "?": ".", "\ue000": r"\*", "\ue001": r"\?"}
    return re.compile("".join(special.get(char) or re.escape(char) for char in glob), re.DOTALL)


def like(value: str, glob: str) -> bool:
    """Whether a value matches a text with `*` and `?`."""
    return bool(_pattern(glob).fullmatch(value))


def arn_like(value: str, glob: str) -> bool:
    """Each of an ARN's six parts is compared on its own, so that `*` never reaches over a colon of the first five."""
    if glob == "*":
        return True
    found, wanted = value.split(":", 5), glob.split(":", 5)
    return len(found) == len(wanted) and all(map(like, found, wanted))


def _number(compare: Callable[[float, float], bool]) -> Callable[[str, str], bool]:
    return lambda value, wanted: compare(float(value), float(wanted))


def _equals(value: str, wanted: str) -> bool:
    return value == _literal(wanted)


def _equals_any_case(value: str, wanted: str) -> bool:
    return value.lower() == _literal(wanted).lower()


# Operator -> how a value matches, and whether the operator is the negation of that.
_OPERATORS: dict[str, tuple[Callable[[str, str], bool], bool]] = {
    "StringEquals": (_equals, False),
    "StringNotEquals": (_equals, True),
    "StringEqualsIgnoreCase": (_equals_any_case, False),
    "StringNotEqualsIgnoreCase": (_equals_any_case, True),
    "StringLike": (like, False),
    "StringNotLike": (like, True),
    "ArnEquals": (arn_like, False),  # ArnEquals and ArnLike behave identically
    "ArnLike": (arn_like, False),
    "ArnNotEquals": (arn_like, True),
    "ArnNotLike": (arn_like, True),
    "Bool": (_equals_any_case, False),
    "NumericEquals": (_number(operator.eq), False),
    "NumericNotEquals": (_number(operator.eq), True),
    "NumericLessThan": (_number(operator.lt), False),
    "NumericLessThanEquals": (_number(operator.le), False),
    "NumericGreaterThan": (_number(operator.gt), False),
    "NumericGreaterThanEquals": (_number(operator.ge), False),
}
