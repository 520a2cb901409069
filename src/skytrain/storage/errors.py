"""Store errors, with messages that say what to do."""

from __future__ import annotations

from typing import Self

from ..config import EXIT_CODES, SkytrainError


class StoreError(SkytrainError):
    """A store operation failed."""

    def __init__(
        self, operation: str, url: str, problem: str, *, hint: str | None = None, tried_seconds: float | None = None
    ) -> None:
        self.operation = operation
        self.url = url
        self.problem = problem
        self.hint = hint
        self.tried_seconds = tried_seconds  # None if the operation was not retried
        message = f"cannot {operation} {url}: {problem}"
        if tried_seconds is not None:
            message += f" (tried for {tried_seconds:.1f} s)"
        if hint:
            message += f"\n  {hint}"
        super().__init__(message)

    def after(self, seconds: float) -> Self:
        """Return the same error with the time spent retrying."""
        return type(self)(self.operation, self.url, self.problem, hint=self.hint, tried_seconds=seconds)


class ObjectError(StoreError):
    """One object cannot be used. Whoever may write it decides that: it must not keep others from being read."""


def is_of_store(error: Exception) -> bool:
    """Return whether an error concerns the whole store, not one object or record of it."""
    return isinstance(error, StoreError) and not isinstance(error, ObjectError)


class NotFound(ObjectError):
    """The object does not exist."""


class TooLarge(ObjectError):
    """The object is larger than any that Skytrain writes there, and was not read."""

    exit_code = EXIT_CODES["damaged"]


class AccessDenied(StoreError):
    """The credentials or the current user lack the permission."""

    exit_code = EXIT_CODES["credentials"]


class StoreUnreachable(StoreError):
    """The store or the network failed for longer than the time limit. It may work again later."""

    exit_code = EXIT_CODES["store"]


class NoResponse(StoreUnreachable):
    """The server sent no response: nothing listens at the endpoint, its name is unknown, or the network is down."""
