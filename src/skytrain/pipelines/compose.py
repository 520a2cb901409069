"""Compose: `key=value` settings in, a checked configuration out; what `skytrain` and its Python API begin with.

Nothing is imported before it is needed: every command reads this file.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ..config import Composed, RecipeWeights


def compose_overrides(
    overrides: Sequence[str] | None,
    config_dirs: Sequence[Path] | None = None,
    start: str | None = None,
    trusted: Sequence[str] | None = None,
    recipe_weights: RecipeWeights = "read",
) -> Composed:
    """Compose the configuration. Weights to start from (`model.weights`, or `start`) bring their model's settings.

    The code that it names, and what `--trust` names, may also be named by records of the store.
    """
    from ..config import trust, trust_settings
    from ..models import compose_model

    composed = compose_model(
        list(overrides or []), config_dirs or [], start=start, recipe_weights=recipe_weights, tell=_tell
    )
    trust_settings(composed.values)
    trust(list(trusted or []))
    return composed


def _tell(line: str) -> None:
    from ..config import visible

    print(visible(line), file=sys.stderr)
