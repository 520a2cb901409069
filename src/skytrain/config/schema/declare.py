"""The declaration of a setting: its type, what it means, and what it decides, in one place.

Run identity, data versions, checkpoint compatibility, `skytrain config explain` and docs/settings.md are derived from this.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, TypeVar, dataclass_transform

Group = TypeVar("Group")
METADATA_KEY = "setting"


class Decides(Enum):
    """The effect of another value of a setting."""

    NUMBERS = "the numbers of a run: another value is another training"
    WEIGHTS = "the meaning of the weights: a checkpoint made with another value cannot be used"
    DATA = "the bytes of prepared data: another value is another preparation"
    EXECUTION = "only speed, place or reporting: it may change at any time, also in the middle of a run"


NUMBERS, WEIGHTS, DATA, EXECUTION = Decides
RESULT = frozenset({NUMBERS, WEIGHTS, DATA})  # prepared data and weights decide numbers too


@dataclass(frozen=True)
class Declared:
    """The declaration of a schema field, besides its type."""

    decides: Decides
    meaning: str


def setting(decides: Decides, meaning: str) -> Any:
    """Declare a field of a `settings` class. Its default is in a YAML file under `config/groups/`."""
    return field(metadata={METADATA_KEY: Declared(decides, meaning)})


@dataclass_transform(frozen_default=True, field_specifiers=(setting,))
def settings(group: type[Group]) -> type[Group]:
    """Make a class a group of settings: a frozen dataclass whose fields are declared with `setting`, or are groups."""
    return dataclass(frozen=True)(group)


def declared(of: dataclasses.Field[Any]) -> Declared | None:
    """Return the field's declaration, or None for a nested group."""
    declaration: Declared | None = of.metadata.get(METADATA_KEY)
    return declaration
