"""The built-in YAML files, the only home of defaults: what each file sets, and what a user's file may leave out."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from typing import Any

from omegaconf import OmegaConf

from .schema import Config, fill, flatten
from .upgrades import BEFORE

GROUPS_MODULE = "skytrain.config.groups"
GLOBAL_PACKAGE = "# @package _global_"  # Hydra's directive for a file whose keys start at the root

# A user's group (budget/mine.yaml) may be older than a setting, and cloud=ec2 does not mention Slurm. What is left out
# has the value of these files.
BASE_FILES = (
    "model/__decoder.yaml",
    "trainer/default.yaml",
    "budget/none.yaml",
    "cloud/none.yaml",
    "cloud/slurm.yaml",
    "cloud/sagemaker.yaml",
    "cloud/_emr.yaml",
    "cloud/eks.yaml",
    "tune/default.yaml",
    "serve/default.yaml",
)
TARGET_GROUPS = ("cloud.slurm", "cloud.sagemaker", "cloud.emr", "cloud.eks")  # a file has those of one target at most


@cache
def file_settings(file: str) -> Mapping[str, Any]:
    """Return the settings of a built-in file, such as `budget/none.yaml`, by their full keys."""
    text = files(GROUPS_MODULE).joinpath(file).read_text(encoding="utf-8")
    values = OmegaConf.to_container(OmegaConf.create(text), resolve=False)
    assert isinstance(values, dict)
    values.pop("defaults", None)
    return flatten(values, "" if GLOBAL_PACKAGE in text else file.rpartition("/")[0].replace("/", "."))


def with_left_out(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return composed values with the settings that their files may leave out, from the built-in files."""
    return fill(Config, values, _left_out)


def _left_out(group: type, name: str, key: str) -> Any:
    if key in TARGET_GROUPS:
        return {}  # whose own settings are filled next
    if key.startswith(TARGET_GROUPS) or name in BEFORE.get(group, {}):
        return next(
            (file_settings(file)[key] for file in BASE_FILES if key in file_settings(file)), dataclasses.MISSING
        )
    return dataclasses.MISSING
