"""Errors that a user can fix: one message with the value, its origin and what to do."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class SkytrainError(ValueError):
    """A problem with the user's input. The command line prints it without a traceback and exits with `exit_code`."""

    exit_code = 2


class ConfigError(SkytrainError):
    """A setting that is unknown, of the wrong type or out of range."""

    def __init__(self, key: str, problem: str, *, origin: str | None = None, hint: str | None = None) -> None:
        self.key = key
        self.problem = problem
        self.origin = origin
        self.hint = hint
        message = f"{key}: {problem}"
        if origin:
            message += f" (from {origin})"
        if hint:
            message += f"\n  {hint}"
        super().__init__(message)


class MissingExtra(SkytrainError):
    """The error of a job that needs a package which is not installed."""

    def __init__(self, package: str, extra: str) -> None:
        super().__init__(
            f"this needs the package {package!r}, which is not installed\n  pip install 'skytrain[{extra}]'"
        )


def error_text(error: BaseException) -> str:
    """Return the message of an error that is reported and survived; of one that nobody expected, with its type."""
    expected = isinstance(error, SkytrainError | OSError) and str(error)
    return str(error) if expected else f"{type(error).__name__}: {error}"


def nearest(word: str, choices: Iterable[str], cutoff: float = 0.5) -> str | None:
    """Return the choice closest to a mistyped word, or None if no similarity reaches `cutoff` (1 means equal)."""
    by_lower = {choice.lower(): choice for choice in choices}
    matches = difflib.get_close_matches(word.lower(), list(by_lower), n=1, cutoff=cutoff)
    return by_lower[matches[0]] if matches else None
