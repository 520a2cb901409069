"""Records of earlier versions, brought up to date in one step when they are read.

Defaults are in the YAML files, and may change there. What a record means may not: a setting that a record lacks had no
name when it was written, and Skytrain did then what `BEFORE` says. The values were frozen on 2026-11-16 and never
follow a YAML file. A setting that is added later gets its default in YAML, and here the value that keeps older records
as they are. A whole group that a record lacks stays absent: no reader of old records needs one.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from .schema import (
    BudgetConfig,
    CloudConfig,
    Config,
    DecoderConfig,
    RolesConfig,
    ServeConfig,
    TrainerConfig,
    TuneConfig,
    fill,
)

BEFORE: Mapping[type, Mapping[str, Any]] = {
    Config: {"engine": "local"},
    DecoderConfig: {
        "weights": None,
        "parametrization": "standard",
        "base_width": None,
        "base_layers": None,
        "pre_norms": True,
        "qk_norm_scope": "head",
    },
    TrainerConfig: {"diverged_nats": None},
    BudgetConfig: {"overrun": "stop", "whole_machine": True, "planned_usd": None, "planned_step_seconds": None},
    CloudConfig: {
        "cloudwatch": False,
        "emr_service_group": None,
        "emr_security": None,
        "kind": "job",
        "prepare_profile": None,
        "serve_profile": None,
        "reservation": None,
    },
    RolesConfig: {"prepare": None, "emr_service": None},
    TuneConfig: {"axes": None, "trunk": False, "parallel": 1, "host": None, "machines": 1},
    ServeConfig: {"source": None, "name": None, "key_parameter": None},
}


def upgrade(schema: Any, record: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of a record, which may be of any earlier version, with those that it had no name for.

    `schema` is what they are settings of: the whole `Config`, or one of its groups.
    """
    return fill(schema, record, lambda group, name, key: BEFORE.get(group, {}).get(name, dataclasses.MISSING))
