"""Checks rules of this codebase that no standard linter has, and prints each violation.

- A package is used through its public names (`__init__.pyi`). Only `pipelines` is imported by module.
- A public name differs from the names of its package's modules, and another package, a script or a page uses it: tests
  and benchmarks import what is not public from its module, and what is public from its package.
- A dataclass or named tuple is called with at most four positional arguments, also in tests and scripts, except in a
  table (`# fmt: off`).
- A class name is used once in the project, and hides no name of the standard library.
- Undocumented parts of Lightning are used in `parallel/lightning_internals.py` only.
"""

from __future__ import annotations

import ast
import re
import sys
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "src" / "skytrain"
USERS = ("rehearsal", "lessons", "scripts")  # of public names, beside the packages and the pages of `docs`
AROUND = (*USERS, "benchmarks", "tests")
BY_MODULE = "pipelines"
MAX_POSITIONAL = 4
LIGHTNING_INTERNALS = SOURCE / "parallel" / "lightning_internals.py"
LIGHTNING_MODULES = {  # documented, apart from names with a leading underscore
    "lightning",
    "lightning.pytorch",
    "lightning.pytorch.core.optimizer",
    "lightning.pytorch.loggers",
    "lightning.pytorch.plugins.environments",
    "lightning.pytorch.plugins.io",
    "lightning.pytorch.strategies",
    "lightning.pytorch.utilities.rank_zero",
}
LIGHTNING_OBJECTS = {"trainer", "module", "strategy", "lightning_module"}  # as our code calls them
TORCH_MODULE = {"_parameters", "_buffers", "_modules", "_non_persistent_buffers_set"}
LIGHTNING_LOOPS = {"fit_loop", "epoch_loop", "batch_progress", "optim_progress", "_lightning_module"}
STANDARD_NAMES = {"Path", "Process", "Thread", "Queue", "Event", "Lock", "Enum", "Counter", "Future", "Task"}


def main() -> None:
    trees = {path: ast.parse(path.read_text()) for path in sorted(SOURCE.rglob("*.py"))}
    around = {path: ast.parse(path.read_text()) for folder in AROUND for path in sorted((ROOT / folder).rglob("*.py"))}
    dataclasses = {name for tree in (trees | around).values() for name in _dataclasses(tree)}
    problems = [
        problem
        for path, tree in trees.items()
        for problem in (*deep_imports(path, tree), *lightning_internals(path, tree))
    ]
    problems += [
        problem for path, tree in (trees | around).items() for problem in positional_arguments(path, tree, dataclasses)
    ]
    problems += [problem for path, tree in around.items() for problem in bypassed_public_names(path, tree)]
    problems += [*shared_class_names(trees), *hidden_public_names(), *unused_public_names(trees)]
    print("\n".join(problems) or f"{len(trees)} files, no violations")
    sys.exit(bool(problems))


def deep_imports(path: Path, tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if not isinstance(node, ast.ImportFrom):
            continue
        package, *modules = _target(path, node) or [_package(path)]
        if modules and package not in (_package(path), BY_MODULE) and path.name != "__main__.py":
            name = ".".join([package, *modules])
            yield f"{_place(path, node)}: imports from skytrain.{name}; use the public names of skytrain.{package}"


def positional_arguments(path: Path, tree: ast.Module, dataclasses: set[str]) -> Iterator[str]:
    tables = _tables(path)
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call) or len(node.args) <= MAX_POSITIONAL or node.lineno in tables:
            continue
        function = node.func.value if isinstance(node.func, ast.Subscript) else node.func
        name = function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")
        if name in dataclasses:
            yield f"{_place(path, node)}: {name} is given {len(node.args)} positional arguments; use keywords"


def _dataclasses(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef):
            decorators = [each.func if isinstance(each, ast.Call) else each for each in node.decorator_list]
            bases = [ast.unparse(each) for each in node.bases]
            if "NamedTuple" in bases or any(
                ast.unparse(each) in ("dataclass", "dataclasses.dataclass") for each in decorators
            ):
                yield node.name


def _tables(path: Path) -> set[int]:
    """Return the lines that the formatter leaves alone: rows of aligned tables, whose header names the arguments."""
    found = set()
    inside = False
    for number, line in enumerate(path.read_text().splitlines(), 1):
        inside = (inside or "# fmt: off" in line) and "# fmt: on" not in line
        if inside:
            found.add(number)
    return found


def lightning_internals(path: Path, tree: ast.Module) -> Iterator[str]:
    if path == LIGHTNING_INTERNALS:
        return
    for node in ast.walk(tree):
        name = _lightning_internal(node)
        if name:
            yield f"{_place(path, node)}: {name} is internal to Lightning; use it only in {LIGHTNING_INTERNALS.name}"


def _lightning_internal(node: ast.AST) -> str | None:
    """The undocumented part of Lightning that a piece of code names, if any."""
    if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "lightning":
        private = [alias.name for alias in node.names if alias.name.startswith("_")]
        return node.module if node.module not in LIGHTNING_MODULES else next(iter(private), None)
    if isinstance(node, ast.Import):
        return next((each.name for each in node.names if each.name.startswith("lightning.pytorch.")), None)
    if isinstance(node, ast.Attribute):
        owner = node.value.attr if isinstance(node.value, ast.Attribute) else getattr(node.value, "id", "")
        hidden = node.attr.startswith("_") and not node.attr.startswith("__") and node.attr not in TORCH_MODULE
        internal = node.attr in LIGHTNING_LOOPS or (hidden and owner in LIGHTNING_OBJECTS)
        return ast.unparse(node) if internal else None
    if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant) and node.slice.value == "loops":
        return ast.unparse(node)
    return None


def shared_class_names(trees: dict[Path, ast.Module]) -> Iterator[str]:
    places: dict[str, list[str]] = defaultdict(list)
    for path, tree in trees.items():
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                places[node.name].append(_place(path, node))
    for name, found in sorted(places.items()):
        if len(found) > 1:
            yield f"{', '.join(found)}: class {name} is defined more than once"
        if name in STANDARD_NAMES:
            yield f"{found[0]}: class {name} hides a name of the standard library"


def hidden_public_names() -> Iterator[str]:
    for stub in sorted(SOURCE.glob("*/__init__.pyi")):
        modules = {path.stem for path in stub.parent.glob("*.py")} | {
            path.name for path in stub.parent.iterdir() if path.is_dir()
        }
        for node in ast.parse(stub.read_text()).body:
            assert isinstance(node, ast.ImportFrom), stub
            for alias in node.names:
                if alias.name in modules:
                    yield f"{_place(stub, node)}: {alias.name} is also a module of the package, which would hide it"


def bypassed_public_names(path: Path, tree: ast.Module) -> Iterator[str]:
    """Yield the public names that tests and scripts import from the module behind them."""
    for node in ast.walk(tree):
        parts = (node.module or "").split(".") if isinstance(node, ast.ImportFrom) else []
        if len(parts) < 3 or parts[0] != "skytrain" or not isinstance(node, ast.ImportFrom):
            continue
        for alias in node.names:
            if public_names(parts[1]).get(alias.name) == ".".join(parts[2:]):
                yield f"{_place(path, node)}: {alias.name} is public: import it from skytrain.{parts[1]}"


@cache
def public_names(package: str) -> dict[str, str]:
    """Return the module behind each public name of a package."""
    stub = SOURCE / package / "__init__.pyi"
    imports = ast.parse(stub.read_text()).body if stub.exists() else []
    return {
        alias.name: str(each.module) for each in imports if isinstance(each, ast.ImportFrom) for alias in each.names
    }


def unused_public_names(trees: dict[Path, ast.Module]) -> Iterator[str]:
    """Yield the public names that no other package, script or page uses."""
    used: dict[str, set[str]] = defaultdict(set)
    for path, tree in trees.items():
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom):
                target = _target(path, node) or [""]
                if len(target) == 1 and target[0] != _package(path):
                    used[target[0]] |= {alias.name for alias in node.names}
    scripts = [ast.parse(path.read_text()) for folder in USERS for path in (ROOT / folder).rglob("*.py")]
    for node in (node for tree in scripts for node in ast.walk(tree)):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("skytrain."):
            used[str(node.module).removeprefix("skytrain.")] |= {alias.name for alias in node.names}
    pages = set(re.findall(r"\w+", "\n".join(path.read_text() for path in (ROOT / "docs").rglob("*.md"))))
    for stub in sorted(SOURCE.glob("*/__init__.pyi")):
        for node in ast.parse(stub.read_text()).body:
            for alias in node.names if isinstance(node, ast.ImportFrom) else ():
                if alias.name not in used[stub.parent.name] | pages:
                    yield f"{_place(stub, node)}: {alias.name} is public, and only its package, tests or benchmarks use it"


def _target(path: Path, node: ast.ImportFrom) -> list[str] | None:
    """The parts of the imported module below `skytrain`; None for other projects and for `skytrain` itself."""
    if not node.level:
        parts = (node.module or "").split(".")
        return parts[1:] or None if parts[0] == "skytrain" else None
    folder = path.relative_to(SOURCE).parent.parts
    base = folder[: len(folder) - (node.level - 1)]
    return [*base, *(node.module.split(".") if node.module else [])] or None


def _package(path: Path) -> str:
    parts = path.relative_to(SOURCE).parts
    return parts[0] if len(parts) > 1 else ""


def _place(path: Path, node: ast.AST | None = None) -> str:
    return f"{path.relative_to(ROOT)}:{getattr(node, 'lineno', 1)}"


if __name__ == "__main__":
    main()
