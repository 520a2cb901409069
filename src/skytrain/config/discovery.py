"""Registries: an optimizer, a family, a strategy or a target is registered by being in its package."""

from __future__ import annotations

from importlib import import_module
from pkgutil import iter_modules
from typing import Any


def discover(package: str, constant: str) -> dict[str, Any]:
    """Return what each module of `package` defines as `constant`, by the module's name, in alphabetical order.

    Modules without it belong to the package, not to the registry. So a new optimizer, family, strategy or target is a
    new file, and no list has to name it. A module may be a folder, whose `__init__.py` then defines the constant.
    """
    names = module_names(package)
    modules = {name: import_module(f"{package}.{name}") for name in names}
    return {name: getattr(module, constant) for name, module in modules.items() if hasattr(module, constant)}


def module_names(package: str) -> list[str]:
    """Return the names of the modules of `package` without importing them, except those with a leading underscore."""
    modules = iter_modules(import_module(package).__path__)
    return sorted(module.name for module in modules if not module.name.startswith("_"))
