"""Compose: `key=value` settings in, a checked configuration out; what `skytrain` and its Python API begin with.

Nothing is imported before it is needed: every command reads this file.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ..config import Composed


def compose_overrides(
    overrides: Sequence[str] | None,
    config_dirs: Sequence[Path] | None = None,
    start: str | None = None,
    trusted: Sequence[str] | None = None,
) -> Composed:
    """Compose the configuration. Weights to start from (`model.weights`, or `start`) bring their model's settings.

    The code that it names, and what `--trust` names, may also be named by records of the store.
    """
    from ..config import compose, trust, trust_settings
    from ..models import adopt_model, check_model, is_pretrained
    from ..tokens import read_tokenizer_settings

    # `start` is a run, too, or a checkpoint of one: those bring no settings.
    given = start if start and is_pretrained(start) else None
    composed = compose(
        list(overrides or []),
        config_dirs or [],
        adopt=lambda weights: adopt_model(weights if start is None else given, _tell),
        read_tokenizer=read_tokenizer_settings,
    )
    check_model(composed.config.model, start)
    trust_settings(composed.values)
    trust(list(trusted or []))
    return composed


def _tell(line: str) -> None:
    print(line, file=sys.stderr)
