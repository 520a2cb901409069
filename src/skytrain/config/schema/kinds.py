"""Kinds of values: ranges and units, and the names that the groups' fields are declared with."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Literal

from ..units import Interval, parse_bytes, parse_count, parse_interval, parse_micro_batch, parse_seconds


@dataclass(frozen=True)
class Range:
    """Bounds of a number; a bound is part of the range unless `above` says it is not."""

    min: float | None = None
    max: float | None = None
    above: float | None = None


@dataclass(frozen=True)
class Unit:
    """Marks a field whose text form carries a unit; `parse` turns it into the field's type."""

    parse: Any
    name: str


Whole = Annotated[int, Range(min=0)]
Positive = Annotated[int, Range(min=1)]
Degree = Annotated[int, Range(min=-1)]
Count = Annotated[int, Unit(parse_count, "count"), Range(min=1)]
MicroBatch = Annotated[int | None, Unit(parse_micro_batch, "sequences")]  # None: auto
Bytes = Annotated[int, Unit(parse_bytes, "bytes"), Range(min=1)]
Seconds = Annotated[float, Unit(parse_seconds, "seconds"), Range(min=0)]
Every = Annotated[Interval, Unit(parse_interval, "interval")]
Fraction = Annotated[float, Range(min=0, max=1)]
PositiveFloat = Annotated[float, Range(above=0)]
NonNegative = Annotated[float, Range(min=0)]
Precision = Literal["32-true", "bf16-mixed", "bf16-true", "16-mixed"]
