"""The API key of an endpoint: from a file, from the environment, or a new one that is shown once."""

from __future__ import annotations

import secrets
import shlex
from dataclasses import dataclass
from pathlib import Path

from ..config import SkytrainError, variable

VARIABLE = "SKYTRAIN_API_KEY"
BYTES = 24


@dataclass(frozen=True)
class ApiKey:
    """A key, and where it came from."""

    value: str
    origin: str  # a file, the variable's name, a parameter, or "" for a new key
    read_with: str = ""  # the command that prints it again


def choose_api_key(file: Path | None = None, *, new: bool = True) -> ApiKey | None:
    """Return the key of a file, else of SKYTRAIN_API_KEY, else a new one if `new` allows it."""
    if file is not None:
        try:
            value = file.read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError) as error:
            raise SkytrainError(f"the API key cannot be read: {error}") from None
        return ApiKey(_checked(value, str(file)), str(file), f"cat {shlex.quote(str(file))}")
    if given := variable(VARIABLE):
        return ApiKey(_checked(given.strip(), VARIABLE), VARIABLE)
    return ApiKey(secrets.token_urlsafe(BYTES), "") if new else None


def _checked(value: str, origin: str) -> str:
    if not value or any(not 32 < ord(each) < 127 for each in value):
        raise SkytrainError(f"the API key of {origin} must be one word of visible ASCII characters")
    return value
