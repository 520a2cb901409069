"""The model families: one module each, with a `ModelFamily` called FAMILY. No torch.

A new module is found by itself; docs/add-a-family.md shows the steps.
"""

from __future__ import annotations

import pkgutil
from collections.abc import Mapping
from importlib import import_module

from ._family import ModelFamily, UnsupportedArchitecture

__all__ = ["FAMILIES", "ModelFamily", "UnsupportedArchitecture"]


def _find() -> Mapping[str, ModelFamily]:
    names = sorted(module.name for module in pkgutil.iter_modules(__path__) if not module.name.startswith("_"))
    families: list[ModelFamily] = [import_module(f"{__name__}.{name}").FAMILY for name in names]
    return {family.name: family for family in families}


FAMILIES = _find()
