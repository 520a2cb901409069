"""Records of earlier versions, brought up to date in one step when they are read.

Defaults are in the YAML files, and may change there. What a record means may not: a setting that a record lacks had no
name when it was written, and Skytrain did then what `BEFORE` says. The values were frozen on 2026-11-16 and never
follow a YAML file. A setting that is added later gets its default in YAML, and here the value that keeps older records
as they are. A whole group that a record lacks stays absent: no reader of old records needs one.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Mapping
from typing import Any

from .schema import (
    BudgetConfig,
    CloudConfig,
    Config,
    DecoderConfig,
    EksConfig,
    EmrConfig,
    NearDedupConfig,
    ParallelConfig,
    RolesConfig,
    ServeConfig,
    TrainerConfig,
    TuneConfig,
    WSDScheduleConfig,
    fill,
)
from .schema.optimizers.muon import MuonConfig

BEFORE: Mapping[type, Mapping[str, Any]] = {
    Config: {"engine": "local"},
    DecoderConfig: {
        "weights": None,
        "parametrization": "standard",
        "base_width": None,
        "base_layers": None,
        "pre_norms": True,
        "qk_norm_scope": "head",
        "experts": None,
        "full_every": None,
        "window_theta": None,
        "rope_except": None,
        "latent": None,
        "sinks": False,
        "activation_clamp": None,
        "activation_gain": 1.0,
    },
    MuonConfig: {
        "embedding_lr": None,
        "head_lr": None,
        "vector_lr": None,
        "momentum_start": None,
        "momentum_warmup": 0,
        "row_beta": None,
    },
    NearDedupConfig: {"shingle_words": 5, "bands": 18, "rows": 6, "permutations": None},
    ParallelConfig: {"expert": 1},
    TrainerConfig: {
        "diverged_nats": None,
        "lost_steps": "stop",
        "batch_schedule": [],
        "ema_decay": None,
        "ema_start": 0.7,
        "callbacks": [],
    },
    WSDScheduleConfig: {"decay_power": 1.0},
    BudgetConfig: {"overrun": "stop", "whole_machine": True, "planned_usd": None, "planned_step_seconds": None},
    CloudConfig: {
        "cloudwatch": False,
        "emr_service_group": None,
        "emr_security": None,
        "prepare_profile": None,
        "serve_profile": None,
        "reservation": None,
        "machine_roles": {
            "path": None,
            "boundary": None,
            "node": [],
            "prepare": [],
            "serve": [],
            "sagemaker": [],
            "vault": [],
        },
    },
    EmrConfig: {"root_disk_gb": 30, "applications": ["Spark"], "keep_alive": False, "image": None},
    EksConfig: {"job_kind": "job", "instance_families": []},
    RolesConfig: {"prepare": None, "emr_service": None},
    TuneConfig: {
        "axes": None,
        "trunk": False,
        "parallel": 1,
        "host": None,
        "machines": 1,
        "trials_per_rung": None,
    },
    ServeConfig: {"source": None, "name": None, "key_parameter": None},
}

RENAMED = {"cloud.kind": "cloud.eks.job_kind"}  # settings by their former names, which are still read


def upgrade(schema: Any, record: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of a record, which may be of any earlier version, with those that it had no name for.

    `schema` is what they are settings of: the whole `Config`, or one of its groups.
    """
    renamed = _renamed(record) if schema is Config else record
    return fill(schema, renamed, lambda group, name, key: BEFORE.get(group, {}).get(name, dataclasses.MISSING))


def _renamed(record: Mapping[str, Any]) -> dict[str, Any]:
    """Return the record with the settings under their names of today; a group that it lacks is not made for one."""
    values = copy.deepcopy(dict(record))
    for old, new in RENAMED.items():
        *path, name = old.split(".")
        *new_path, new_name = new.split(".")
        holder, new_holder = _group(values, path), _group(values, new_path)
        if name in holder:
            new_holder.setdefault(new_name, holder.pop(name))
    return values


def _group(values: Any, path: list[str]) -> Any:
    for name in path:
        values = values.get(name, {})
    return values
