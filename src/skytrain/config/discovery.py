"""Registries: an optimizer, a family, a strategy or a target is registered by being in its package."""

from __future__ import annotations

from collections.abc import Iterable
from importlib import import_module
from importlib.util import find_spec
from pkgutil import ModuleInfo, iter_modules
from typing import Any


def discover(package: str, constant: str) -> dict[str, Any]:
    """Return what each module of `package` defines as `constant`, by the module's name, in alphabetical order.

    Modules without it belong to the package, not to the registry. So a new optimizer, family, strategy or target is a
    new file, and no list has to name it. A module may be a folder, whose `__init__.py` then defines the constant.
    """
    modules = sorted(module.name for module in _modules(package) if not module.name.startswith("_"))
    loaded = {name: import_module(f"{package}.{name}") for name in modules}
    return {name: getattr(module, constant) for name, module in loaded.items() if hasattr(module, constant)}


def folders_with(package: str, module: str) -> list[str]:
    """Return the folders of `package` that have a module of this name, which is not loaded."""
    folders = sorted(folder.name for folder in _modules(package) if folder.ispkg)
    return [folder for folder in folders if find_spec(f"{package}.{folder}.{module}") is not None]


def _modules(package: str) -> Iterable[ModuleInfo]:
    return iter_modules(import_module(package).__path__)
