"""The documentation of the running interpreter: real English and code that every machine has offline."""

from __future__ import annotations

import ast
import inspect
import platform
import sys
import sysconfig
import warnings
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...config import SkytrainError
from ..documents import Document

LEFT_OUT = {"test", "tests", "idle_test", "site-packages", "dist-packages", "__pycache__"}
Named = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True)
class PythonDocs:
    """The docstrings of the standard library, read from its source without importing it, and pydoc's topics."""

    def fingerprint(self) -> dict[str, Any]:
        return {"python": platform.python_version()}

    def documents(self) -> Iterator[Document]:
        library = Path(sysconfig.get_paths()["stdlib"])
        modules = sorted(_modules(library))
        if not modules:
            raise SkytrainError(
                f"the standard library's source is not in {library}\n  choose another corpus, such as data=text data.source.paths=..."
            )
        for name, path in modules:
            if name == "pydoc_data.topics":
                yield from _topics(path)
            else:
                yield from _docstrings(name, path)


def _modules(library: Path) -> Iterator[tuple[str, Path]]:
    for path in library.rglob("*.py"):
        parts = path.relative_to(library).with_suffix("").parts
        if LEFT_OUT.isdisjoint(parts) and parts[0] in sys.stdlib_module_names:
            yield ".".join(parts).removesuffix(".__init__"), path


def _parse(path: Path) -> ast.Module:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SyntaxWarning)  # about the library's code, which no user can change
        warnings.simplefilter("ignore", DeprecationWarning)
        return ast.parse(path.read_bytes(), filename=str(path))


def _docstrings(module: str, path: Path) -> Iterator[Document]:
    seen: Counter[str] = Counter()
    for name, text in _walk(module, _parse(path)):
        seen[name] += 1  # a property's getter and setter, or one function for each platform, share a name
        id_ = name if seen[name] == 1 else f"{name}#{seen[name]}"
        yield Document(id_, text, "python-docs")


def _walk(name: str, node: Named) -> Iterator[tuple[str, str]]:
    text = ast.get_docstring(node, clean=False)
    if text:
        yield name, inspect.cleandoc(text)
    yield from _inside(name, node.body)


def _inside(name: str, body: list[Any]) -> Iterator[tuple[str, str]]:
    for child in body:
        if isinstance(child, Named):
            yield from _walk(f"{name}.{child.name}", child)  # type: ignore[union-attr]
        elif isinstance(child, ast.If | ast.Try | ast.With):
            for field in ("body", "orelse", "handlers", "finalbody"):
                yield from _inside(name, getattr(child, field, []))
        elif isinstance(child, ast.ExceptHandler):
            yield from _inside(name, child.body)


def _topics(path: Path) -> Iterator[Document]:
    for statement in _parse(path).body:
        if isinstance(statement, ast.Assign) and isinstance(statement.value, ast.Dict):
            topics: dict[str, str] = ast.literal_eval(statement.value)
            for topic in sorted(topics):
                yield Document(f"topic:{topic}", topics[topic].strip(), "python-docs")
