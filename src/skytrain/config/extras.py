"""Find the Skytrain extra that installs a missing package."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError, requires

from .errors import MissingExtra

# Packages installed as dependencies of an extra's package but imported under their own names.
BROUGHT_BY = {"botocore": "boto3"}


def extra_with(package: str) -> str | None:
    """Return the extra that lists the package in Skytrain's metadata, or None."""
    wanted = BROUGHT_BY.get(package, package).replace("-", "_").lower()
    try:
        requirements = requires("skytrain") or []
    except PackageNotFoundError:  # running from a source folder, not installed
        return None
    for requirement in requirements:
        match = re.match(r"""([\w.-]+)[^;]*;.*\bextra == ["']([\w-]+)["']""", requirement)
        if match and match[1].replace("-", "_").lower() == wanted:
            return match[2]
    return None


@contextmanager
def naming_extras() -> Iterator[None]:
    """Turn an import error inside the block into MissingExtra if an extra provides the package."""
    try:
        yield
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        extra = extra_with(package)
        if extra is None:
            raise
        raise MissingExtra(package, extra) from error
