"""Which extra of Skytrain brings a package that is not installed."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError, requires

from .errors import MissingExtra

# Packages that come with one of ours and are imported by their own names.
BROUGHT_BY = {"botocore": "boto3"}


def extra_with(package: str) -> str | None:
    """As Skytrain's own metadata has it; None for a package that no extra names."""
    wanted = BROUGHT_BY.get(package, package).replace("-", "_").lower()
    try:
        requirements = requires("skytrain") or []
    except PackageNotFoundError:  # it runs from a folder, and was never installed
        return None
    for requirement in requirements:
        found = re.match(r"""([\w.-]+)[^;]*;.*\bextra == ["']([\w-]+)["']""", requirement)
        if found and found[1].replace("-", "_").lower() == wanted:
            return found[2]
    return None


@contextmanager
def naming_extras() -> Iterator[None]:
    """An import that fails because an extra is not installed says which one."""
    try:
        yield
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        extra = extra_with(package)
        if extra is None:
            raise
        raise MissingExtra(package, extra) from error
