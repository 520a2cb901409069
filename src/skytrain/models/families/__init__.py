"""The model families: one module each, with a `ModelFamily` called FAMILY. No torch.

A new module is found by itself; docs/add-a-family.md shows the steps.
"""

from __future__ import annotations

from collections.abc import Mapping

from ...config import discover
from ._family import ModelFamily, UnsupportedArchitecture

__all__ = ["FAMILIES", "ModelFamily", "UnsupportedArchitecture"]

FAMILIES: Mapping[str, ModelFamily] = {family.name: family for family in discover(__name__, "FAMILY").values()}
