"""Loading a trained model, from a run's checkpoint or an exported folder, onto the device where it is used."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, get_args

import torch

from ..checkpoints import is_model_file, load_model
from ..config import Config, Precision, SkytrainError, check_named
from ..models import check_precision, choose_device_type, is_pretrained, resolve_precision
from ..runs import RunRecord, load_run
from ..storage import Store, record_of
from ..tokens import Tokenizer
from .ensemble import EnsembleDefinition, EnsembleModel, read_ensemble
from .whole_model import WholeModel


@dataclass(frozen=True)
class PlacedModel:
    """A model on its device, with its tokenizer and its origin."""

    model: WholeModel | EnsembleModel
    tokenizer: Tokenizer
    label: str
    run: RunRecord | None


def place_model(config: Config, store: Store, source: str | None, precision: str | None = None) -> PlacedModel:
    """Load `source` onto the device that `trainer.device` names.

    `source` is a run, RUN@STEP, a run that is an ensemble, or a folder; by default the newest run.

    The default precision on a GPU is the one that the run was trained in, or the configured one for an exported
    folder. On a CPU it is float32: lower precision is slower there.
    """
    device = choose_device_type(config.trainer.device)
    if precision is not None:
        if precision not in get_args(Precision):
            raise SkytrainError(f"precision {precision!r}: must be one of {', '.join(get_args(Precision))}")
        check_precision(device, precision, "--precision")
    of_a_run = source is not None and not is_pretrained(source) and not is_model_file(source)
    if source and of_a_run and (forest := read_ensemble(store, source.partition("@")[0])):
        return _place_ensemble(config, store, source, forest, precision)
    loaded = load_model(store, source, config.tokenizer)
    if precision is None:
        trained = _precision(store, loaded.run) if loaded.run else config.trainer.precision
        precision = "32-true" if device == "cpu" else resolve_precision(device, trained)
        check_precision(device, precision, "--precision")
    model = WholeModel(loaded.model, torch.device(device), precision)
    if config.trainer.compile and device == "cuda":
        model.compile_blocks()
    return PlacedModel(model, loaded.tokenizer, loaded.label, loaded.run)


def _precision(store: Store, run: RunRecord) -> Any:
    """Return the precision that a run was trained in, as its record says."""
    with record_of(store, f"runs/{run.name}/run.json"):
        return run.config["trainer"]["precision"]


def _place_ensemble(
    config: Config, store: Store, source: str, forest: EnsembleDefinition, precision: str | None
) -> PlacedModel:
    """Load all experts of an ensemble onto one device."""
    outside = [expert for expert in forest.experts if is_pretrained(expert) or is_model_file(expert)]
    check_named([("ensemble.expert", expert) for expert in outside], f"the ensemble {source}")
    runs = [expert.partition("@")[0] for expert in forest.experts if expert not in outside]
    if any(read_ensemble(store, run) for run in runs):  # one that names itself would be opened for ever
        raise SkytrainError(f"{source} is an ensemble of ensembles\n  make one of the models themselves")
    experts = [place_model(config, store, expert, precision) for expert in forest.experts]
    models = [each.model for each in experts if isinstance(each.model, WholeModel)]
    model = EnsembleModel(models, forest.prior, updating=forest.updating)
    return PlacedModel(model, experts[0].tokenizer, source, load_run(store, source.partition("@")[0]))
