"""What can go wrong in a store, in words that say what to do."""

from __future__ import annotations

from typing import Self

from ..config import SkytrainError


class StoreError(SkytrainError):
    """An operation on a store that cannot succeed."""

    def __init__(self, operation: str, url: str, problem: str, *, hint: str | None = None, attempts: int = 1) -> None:
        self.operation, self.url, self.problem, self.hint, self.attempts = operation, url, problem, hint, attempts
        message = f"cannot {operation} {url}: {problem}"
        if attempts > 1:
            message += f" (after {attempts} attempts)"
        if hint:
            message += f"\n  {hint}"
        super().__init__(message)

    def after(self, attempts: int) -> Self:
        """The same error, with the number of times that we tried."""
        return type(self)(self.operation, self.url, self.problem, hint=self.hint, attempts=attempts)


class NotFound(StoreError):
    """There is no such object."""


class AccessDenied(StoreError):
    """The credentials, or the user who runs this, may not do that."""


class StoreUnreachable(StoreError):
    """The store, or the network on the way to it, was in trouble for longer than we wait. It may work again later."""
