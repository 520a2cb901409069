"""Loading a trained model, from a run's checkpoint or an exported folder, onto the device where it is used."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from ..checkpoints import load_model
from ..config import Config
from ..models import check_precision, choose_device_type, resolve_precision
from ..runs import RunRecord
from ..storage import Store
from ..tokens import Tokenizer
from .whole_model import WholeModel


@dataclass(frozen=True)
class PlacedModel:
    """A model on its device, with its tokenizer and its origin."""

    model: WholeModel
    tokenizer: Tokenizer
    label: str
    run: RunRecord | None


def place_model(config: Config, store: Store, source: str | None, precision: str | None = None) -> PlacedModel:
    """Loads `source` onto the device that `trainer.device` names.

    `source` is a run, RUN@STEP or a folder; by default the newest run.

    The default precision on a GPU is the one that the run was trained in, or the configured one for an exported
    folder. On a CPU it is float32: lower precision is slower there.
    """
    device = choose_device_type(config.trainer.device)
    if precision is not None:
        check_precision(device, precision, "--precision")
    loaded = load_model(store, source)
    if precision is None:
        trained = loaded.run.config["trainer"]["precision"] if loaded.run else config.trainer.precision
        precision = "32-true" if device == "cpu" else resolve_precision(device, trained)
        check_precision(device, precision, "--precision")
    model = WholeModel(loaded.model, torch.device(device), precision)
    if config.trainer.compile and device == "cuda":
        model.compile_blocks()
    return PlacedModel(model, loaded.tokenizer, loaded.label, loaded.run)
