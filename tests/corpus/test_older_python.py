"""The stages also run inside Spark, whose Python is older and whose workers have little installed."""

from __future__ import annotations

import ast
import sys
from pathlib import Path

import pytest

from skytrain import corpus

ROOM = Path(corpus.__file__).parent
STAGES = [
    "characters.py",
    "clean.py",
    "decontaminate.py",
    "minhash.py",
    *(f"rules/{path.name}" for path in (ROOM / "rules").glob("*.py")),
]
ALLOWED = {"numpy", "numba", "resiliparse"}


@pytest.mark.parametrize("name", STAGES)
def test_a_stage_needs_no_newer_syntax_and_no_other_room(name: str) -> None:
    tree = ast.parse((ROOM / name).read_text(), feature_version=(3, 9))
    assert (
        any(isinstance(node, ast.ImportFrom) and node.module == "__future__" for node in tree.body)
        or len(tree.body) == 1
    )
    for node in ast.walk(tree):
        names = (
            [alias.name for alias in node.names]
            if isinstance(node, ast.Import)
            else [node.module or ""]
            if isinstance(node, ast.ImportFrom) and not node.level
            else []
        )
        for imported in names:
            assert imported.partition(".")[0] in ALLOWED | set(sys.stdlib_module_names)
        if isinstance(node, ast.Call):  # zip(strict=) and dataclass(slots=) came with 3.10
            assert not {keyword.arg for keyword in node.keywords} & {"strict", "slots", "kw_only"}
