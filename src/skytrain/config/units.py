"""Parse and format numbers with units: `2.5B` tokens, `512MiB`, `90s`."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

COUNT_SUFFIXES = {"": 1, "K": 10**3, "M": 10**6, "B": 10**9, "T": 10**12}
BYTE_SUFFIXES = {
    "": 1,
    "B": 1,
    "KB": 10**3,
    "MB": 10**6,
    "GB": 10**9,
    "TB": 10**12,
    "KIB": 2**10,
    "MIB": 2**20,
    "GIB": 2**30,
    "TIB": 2**40,
}
SECOND_SUFFIXES = {"s": 1.0, "m": 60, "min": 60.0, "h": 3600.0, "d": 86400.0}

NUMBER = re.compile(r"\s*([+-]?(?:\d[\d_]*\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)\s*([A-Za-z]*)\s*")


@dataclass(frozen=True)
class Interval:
    """An interval in optimizer steps or seconds; with neither set, it is chosen automatically (`auto`)."""

    steps: int | None = None
    seconds: float | None = None

    def __str__(self) -> str:
        if self.steps is not None:
            return f"{self.steps} steps"
        return "auto" if self.seconds is None else format_seconds(self.seconds)


def _split(text: str, example: str) -> tuple[float, str]:
    match = NUMBER.fullmatch(text)
    if not match:
        raise ValueError(f"not a number with a unit, such as {example}")
    return float(match[1].replace("_", "")), match[2]


def _whole(value: float, what: str) -> int:
    if not math.isfinite(value) or abs(value - round(value)) > 1e-6:
        raise ValueError(f"not a whole number of {what}")
    return round(value)


def parse_count(value: object) -> int:
    """Parse `2.5B`, `300_000`, `1e9` or a plain integer."""
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    if isinstance(value, float):
        return _whole(value, "things")
    number, suffix = _split(str(value), "2.5B, 300K or 1e9")
    if suffix.upper() not in COUNT_SUFFIXES:
        raise ValueError(f"unknown unit {suffix!r}: use K, M, B or T")
    return _whole(number * COUNT_SUFFIXES[suffix.upper()], "things")


def parse_micro_batch(value: object) -> int | None:
    """Parse a number of sequences; None for `auto`, whose size is determined later."""
    if value is None or value == "auto":
        return None
    size = parse_count(value)
    if size < 1:
        raise ValueError("must be at least 1, or auto")
    return size


def parse_bytes(value: object) -> int:
    """Parse `512MiB`, `2GB` or a plain integer as bytes."""
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    number, suffix = _split(str(value), "512MiB or 2GB")
    if suffix.upper() not in BYTE_SUFFIXES:
        raise ValueError(f"unknown unit {suffix!r}: use KiB, MiB, GiB, TiB or KB, MB, GB, TB")
    return _whole(number * BYTE_SUFFIXES[suffix.upper()], "bytes")


def parse_seconds(value: object) -> float:
    """Parse `90s`, `10m` or `10min`, `2h`, `1d` or a plain number of seconds."""
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return float(value)
    number, suffix = _split(str(value), "90s, 10m or 2h")
    if not suffix:
        return number
    if suffix not in SECOND_SUFFIXES:
        raise ValueError(f"unknown unit {suffix!r}: use s, m, h or d")
    return number * SECOND_SUFFIXES[suffix]


def parse_interval(value: object) -> Interval:
    """Parse a whole number (of steps), a time such as `10m`, or `auto`."""
    if isinstance(value, Interval):
        return value
    if value == "auto":
        return Interval()
    if isinstance(value, float) or (isinstance(value, str) and re.fullmatch(r"\s*-?[\d.]+\s*", value)):
        value = _whole(float(value), "steps")
    if isinstance(value, int) and not isinstance(value, bool):
        if value < 1:
            raise ValueError("must be at least 1 step")
        return Interval(steps=value)
    match = re.fullmatch(r"\s*(\d+)\s*steps?\s*", str(value))
    if match:
        return parse_interval(int(match[1]))
    seconds = parse_seconds(value)
    if not math.isfinite(seconds):
        raise ValueError("must be a finite time")
    if seconds <= 0:
        raise ValueError("must be longer than 0 s")
    return Interval(seconds=seconds)


def format_count(value: float) -> str:
    """Format 12,345 as `12.3K`, with three significant digits, for tables."""
    rounded = float(f"{value:.3g}")  # 999,999 is 1M, not 1000K
    for suffix, scale in (("T", 1e12), ("B", 1e9), ("M", 1e6), ("K", 1e3)):
        if abs(rounded) >= scale:
            digits = f"{rounded / scale:.3g}" if abs(rounded / scale) < 1000 else f"{value / scale:.0f}"
            return f"{digits}{suffix}"
    return f"{value:.3g}" if value != int(value) else str(int(value))


def plural(count: int, noun: str, nouns: str | None = None) -> str:
    """Format `1 document`, `2 documents`, `1,000 documents`; `nouns` is an irregular plural."""
    return f"{count:,} {noun if count == 1 else nouns or noun + 's'}"


def format_bytes(value: float) -> str:
    for suffix, scale in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("KB", 1e3)):
        if round(abs(value) / scale * 1000, 2) >= 1000:  # as the smaller unit would show it
            return f"{value / scale:.2f} {suffix}"
    return f"{int(value)} B"


def format_seconds(value: float) -> str:
    if value < 60:
        return f"{value:.1f}s".replace(".0s", "s")
    minutes, seconds = divmod(round(value), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours}h{minutes:02d}m" if minutes else f"{hours}h"
    return f"{minutes}m{seconds:02d}s" if seconds else f"{minutes}m"
