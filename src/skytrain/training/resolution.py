"""Settings that are left open (`auto`) resolved to what a run computes with: precision, mesh and micro-batch."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from functools import partial
from typing import Any

from ..config import Config, ConfigError, Precision, build
from ..jobs import Ranks
from ..parallel import choose_layout, this_machine
from ..runs import Reporter, RunRecord, Start, load_run, run_name
from ..storage import open_store, record_of
from .factory import choose_device, device_name, with_precision
from .micro_batch import with_micro_batch, with_size


@dataclass(frozen=True)
class TrainRequest:
    """The options of a call of `train` in addition to the configuration."""

    start: Start
    allow_changes: bool  # resume although settings that decide the numbers have changed
    given: frozenset[str]  # settings that the user has set, which parallel=auto must not change


def resolve_settings(config: Config, request: TrainRequest, ranks: Ranks, reporter: Reporter) -> Config:
    """Return the configuration with nothing left at `auto`. All ranks call this together; rank 0 decides for all."""
    config = ranks.first_does(partial(_resolve_precision, config, request.start))
    if config.parallel.name == "auto":
        device = choose_device(config)
        chosen, reason = ranks.first_does(
            lambda: choose_layout(config, ranks, this_machine(ranks, device), request.given)
        )
        reporter.note(reason)
        return chosen
    if config.trainer.micro_batch is None:
        return _resolve_micro_batch(config, request.start, ranks, reporter)
    return config


def _resolve_precision(config: Config, start: Start) -> Config:
    """Resolve the precision to the one that the run has used so far; for a new run, to the best of this device.

    The run keeps the name that the settings gave it before, so that it is found again on other hardware.
    """
    if config.trainer.precision != "auto":
        return config
    record = _find_record(config, start)
    before = None if record is None else _recorded(config, record, "precision", Precision)
    return dataclasses.replace(with_precision(config, before), run=run_name(config, start))


def _resolve_micro_batch(config: Config, start: Start, ranks: Ranks, reporter: Reporter) -> Config:
    """Resolve the micro-batch to the size that a resumed run used before on such a device.

    Another would change the last bits of its losses. Without such a run, the fastest size is measured.
    """
    if ranks.world_size > 1:
        raise ConfigError(
            "trainer.micro_batch", "auto measures on one device", hint="with several processes, try parallel=auto"
        )
    device = choose_device(config)
    record = _find_record(config, start)
    if record is not None and record.hardware.get("device") == device_name(device):
        size = max(1, int(_recorded(config, record, "micro_batch", int)))
        reporter.note(f"micro-batch: {size}, as before")
        return with_size(config, size)
    return with_micro_batch(config, device, reporter.note)


def _recorded(config: Config, record: RunRecord, name: str, schema: Any) -> Any:
    """Return a setting of `trainer` that the run has used so far, of this type. Raises DamagedRecord for another."""
    with record_of(open_store(config.store), f"runs/{record.name}/run.json"):
        return build(schema, record.config["trainer"][name], f"trainer.{name}")


def _find_record(config: Config, start: Start) -> RunRecord | None:
    store = open_store(config.store).patient(config.store.patience)
    name = run_name(config, start)
    return load_run(store, name) if store.exists(f"runs/{name}/run.json") else None
