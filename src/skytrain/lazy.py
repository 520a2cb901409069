"""Public names of a package, each loaded when it is first used: `skytrain --help` never loads torch."""

from __future__ import annotations

import ast
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any


def public_names(package: str, file: str) -> tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]:
    """`__getattr__`, `__dir__` and `__all__` of the package whose `__init__.py` is `file`.

    The names stand once, in the `__init__.pyi` beside it, which type checkers and editors read too.
    A public name must differ from the names of the package's modules, which Python sets as attributes when it loads them.
    """
    modules = _read_stub(Path(file).with_suffix(".pyi"))
    names = sorted(modules)

    def load(name: str) -> Any:
        if name not in modules:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(import_module(f".{modules[name]}", package), name)

    return load, lambda: names, names


def _read_stub(path: Path) -> dict[str, str]:
    """Public name -> the module of the package that defines it."""
    modules: dict[str, str] = {}
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.AnnAssign):  # a plain value, which the package itself sets
            continue
        assert isinstance(node, ast.ImportFrom) and node.level == 1 and node.module, (
            f"{path}: only `from .module import name as name`"
        )
        modules |= {alias.name: node.module for alias in node.names}
    return modules
