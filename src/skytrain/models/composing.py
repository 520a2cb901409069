"""Compose a configuration whose model may be described by its weights. No torch."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ..config import AdoptedSettings, Composed, ConfigError, RecipeWeights, SkytrainError, compose
from ..storage import locate_model
from ..tokens import read_tokenizer_settings
from .agreement import adopt_model, check_mesh, check_model
from .sources import is_pretrained

log = logging.getLogger(__name__)


def compose_model(
    overrides: Sequence[str],
    config_dirs: Sequence[str | Path] = (),
    *,
    start: str | None = None,
    recipe_weights: RecipeWeights = "read",
    tell: Callable[[str], None] = lambda line: None,
) -> Composed:
    """Compose the configuration. Weights to start from (`model.weights`, or `start`) bring their model's settings.

    Names of the hub are looked for in the store first. Plans skip the weights that a recipe names, and dry runs read
    them if they are in the store; of a folder, both need only config.json. Settings that disagree with the weights are
    refused.
    """
    # `start` is a run, too, or a checkpoint of one: those bring no settings.
    given = start if start and is_pretrained(start) else None

    def adopt(weights: str | None, store: Mapping[str, Any]) -> AdoptedSettings | None:
        if start is None:
            return adopt_model(weights, tell)
        return adopt_model(given and locate_model(given, store), tell)

    composed = compose(
        overrides,
        config_dirs,
        adopt=adopt,
        read_tokenizer=read_tokenizer_settings,
        locate=locate_model,
        recipe_weights=recipe_weights,
    )
    if composed.unread_weights is None:
        begin = given and locate_model(given, composed.values["store"])
        bare = check_model(composed.config.model, begin, shape_suffices=recipe_weights != "read")
        if bare is not None:
            log.warning(
                "%s has a config.json and no weights: enough for a plan and for dry runs. "
                "To train, it must have model.safetensors and the files of its tokenizer, too",
                bare,
            )
    try:
        check_mesh(composed.config)
    except ConfigError:
        raise
    except SkytrainError:
        pass  # the config.json of model=hf is not here: who trains reads it, and says why
    return composed
