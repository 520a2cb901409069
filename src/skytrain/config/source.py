"""Skytrain's own source files and their hash: nodes compare them, and a plan names the code that it was made for."""

from __future__ import annotations

import hashlib
from functools import lru_cache
from pathlib import Path

PACKAGE = Path(__file__).parents[1]
SUFFIXES = (".py", ".yaml", ".csv")


def source_files() -> dict[str, str]:
    """Return the hash of every source file by its path from the package's parent folder."""
    files = sorted(path for path in PACKAGE.rglob("*") if path.suffix in SUFFIXES)
    return {str(path.relative_to(PACKAGE.parent)): hashlib.sha256(path.read_bytes()).hexdigest()[:12] for path in files}


@lru_cache(maxsize=1)
def source_hash() -> str:
    """Return one hash over all source files."""
    lines = "".join(f"{name} {digest}\n" for name, digest in source_files().items())
    return hashlib.sha256(lines.encode()).hexdigest()[:16]
