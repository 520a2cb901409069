"""The stages also run on Spark's executors, which have little installed."""

from __future__ import annotations

import ast
import sys
from pathlib import Path

import pytest

from skytrain import corpus

FOLDER = Path(corpus.__file__).parent
STAGES = [
    "characters.py",
    "clean.py",
    "decontaminate.py",
    "minhash.py",
    *(f"rules/{path.name}" for path in (FOLDER / "rules").glob("*.py")),
]
ALLOWED = {"numpy", "numba", "resiliparse"}


@pytest.mark.parametrize("name", STAGES)
def test_a_stage_imports_only_what_executors_have(name: str) -> None:
    for node in ast.walk(ast.parse((FOLDER / name).read_text())):
        imported: list[str] = []
        if isinstance(node, ast.Import):
            imported = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and not node.level:
            imported = [node.module or ""]
        assert {each.partition(".")[0] for each in imported} <= ALLOWED | set(sys.stdlib_module_names)
