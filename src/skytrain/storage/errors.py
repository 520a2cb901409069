"""What can go wrong in a store, in words that say what to do."""

from __future__ import annotations

from typing import Self

from ..config import SkytrainError


class StoreError(SkytrainError):
    """An operation on a store that cannot succeed."""

    def __init__(
        self, operation: str, url: str, problem: str, *, hint: str | None = None, tried_seconds: float | None = None
    ) -> None:
        self.operation, self.url, self.problem, self.hint = operation, url, problem, hint
        self.tried_seconds = tried_seconds  # None where trying again was useless
        message = f"cannot {operation} {url}: {problem}"
        if tried_seconds is not None:
            message += f" (tried for {tried_seconds:.1f} s)"
        if hint:
            message += f"\n  {hint}"
        super().__init__(message)

    def after(self, seconds: float) -> Self:
        """The same error, with the time that we kept trying."""
        return type(self)(self.operation, self.url, self.problem, hint=self.hint, tried_seconds=seconds)


class NotFound(StoreError):
    """There is no such object."""


class AccessDenied(StoreError):
    """The credentials, or the user who runs this, may not do that."""


class StoreUnreachable(StoreError):
    """The store or the network failed for longer than we wait. It may work again later."""


class NoResponse(StoreUnreachable):
    """The server sent no response: nothing listens at the endpoint, its name is unknown, or the network is down."""
