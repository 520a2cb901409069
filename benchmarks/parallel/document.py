"""Writes a measured table into docs/parallelism.md."""

from __future__ import annotations

from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs" / "parallelism.md"


def insert(name: str, text: str) -> None:
    before, begin, rest = PAGE.read_text().partition(f"<!-- {name} -->\n")
    _, end, after = rest.partition(f"<!-- /{name} -->")
    assert begin and end, f"{PAGE} has no place for {name}"
    PAGE.write_text(f"{before}{begin}{text}{end}{after}")
