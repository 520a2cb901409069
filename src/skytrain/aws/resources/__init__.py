"""Kinds of AWS resources that may carry our tags: one module each, with a `ResourceKind` called KIND.

A new module is found by itself.
"""

from __future__ import annotations

import pkgutil
from collections.abc import Mapping
from importlib import import_module

from ._kind import CloudResource, ResourceKind
from .auto_scaling_groups import scale_to_zero

__all__ = ["KINDS", "CloudResource", "ResourceKind", "scale_to_zero"]


def _find() -> Mapping[str, ResourceKind]:
    names = sorted(module.name for module in pkgutil.iter_modules(__path__) if not module.name.startswith("_"))
    kinds: list[ResourceKind] = [import_module(f"{__name__}.{name}").KIND for name in names]
    return {kind.name: kind for kind in sorted(kinds, key=lambda kind: (kind.order, kind.name))}


KINDS = _find()
