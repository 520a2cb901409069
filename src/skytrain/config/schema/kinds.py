"""Kinds of values: ranges and units, and the names that the groups' fields are declared with."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Literal

from ..units import Interval, parse_bytes, parse_count, parse_interval, parse_micro_batch, parse_seconds


@dataclass(frozen=True)
class Range:
    """Bounds of a number; `min` and `max` are part of the range, `above` and `below` are not."""

    min: float | None = None
    max: float | None = None
    above: float | None = None
    below: float | None = None


@dataclass(frozen=True)
class Unit:
    """The mark of a field whose text has a unit; `parse` converts it to the field's type."""

    parse: Any
    form: str  # what the text looks like


@dataclass(frozen=True)
class OneOf:
    """The mark of a field that holds one of several groups, which differ in a Literal field."""

    groups: tuple[type, ...]


@dataclass(frozen=True)
class OtherKeys:
    """The mark of the field that takes all other keys of its group: arguments of a plugged-in class."""


MOST_LAYERS = 10_000  # of a model: much is counted layer by layer, and records and folders of others name the number
TIME = "time such as 90s, 10m or 2h"
Whole = Annotated[int, Range(min=0)]
Positive = Annotated[int, Range(min=1)]
Layers = Annotated[int, Range(min=1, max=MOST_LAYERS)]
Degree = Annotated[int, Range(min=-1)]
Count = Annotated[int, Unit(parse_count, "count such as 300K or 2.5B"), Range(min=1)]
MicroBatch = Annotated[int | None, Unit(parse_micro_batch, "whole number, or `auto`")]  # None: auto
Bytes = Annotated[int, Unit(parse_bytes, "size such as 512MiB or 2GB"), Range(min=1)]
Seconds = Annotated[float, Unit(parse_seconds, TIME), Range(min=0)]
Every = Annotated[Interval, Unit(parse_interval, "steps such as 500, time such as 10m, or `auto`")]
Fraction = Annotated[float, Range(min=0, max=1)]
Decay = Annotated[float, Range(min=0, below=1)]  # of an average: with 1, nothing new ever counted
PositiveFloat = Annotated[float, Range(above=0)]
NonNegative = Annotated[float, Range(min=0)]
Precision = Literal["32-true", "bf16-mixed", "bf16-true", "16-mixed"]
