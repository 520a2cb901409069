"""Overrides: `key=value` words of a command line, in Hydra's grammar."""

from __future__ import annotations

from collections.abc import Sequence

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override, OverrideType
from hydra.errors import OverrideParseException

from .errors import SkytrainError


def parse_overrides(overrides: Sequence[str]) -> list[Override]:
    """Parse the `key=value` words of a command line. Raises SkytrainError for one that is something else."""
    for text in overrides:
        if "=" not in text:
            raise SkytrainError(f"{text!r} is not key=value\n  for example: trainer.batch_tokens=64K")
    parser = OverridesParser.create()
    parsed = [_parse_one(parser, text) for text in overrides]
    for override in parsed:
        if override.type is not OverrideType.CHANGE or override.is_sweep_override():
            raise SkytrainError(f"{override.input_line!r}: only key=value is understood here")
    return parsed


def _parse_one(parser: OverridesParser, text: str) -> Override:
    """Parse one override in Hydra's grammar.

    A value that the grammar rejects is plain text, unless it starts like a list, a mapping or a quoted string.
    """
    key, _, value = text.partition("=")
    quote = "'" if "'" not in value else '"'
    quoted = f"{key}={quote}{value}{quote}"
    plain = value[:1] not in ("[", "{", "'", '"') and quote not in value and not value.endswith("\\")
    for candidate in (text, quoted) if plain else (text,):
        try:
            return parser.parse_overrides([candidate])[0]
        except OverrideParseException:
            continue
    raise SkytrainError(
        f"{text!r} cannot be read as key=value\n"
        "  lists are [a, b], mappings {a: 1}; quote text that begins like one of them, or with a quote: 'key=\"[a value\"'"
    )
