"""The built-in YAML files, the only home of defaults: what each file sets, and what a user's file may leave out."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from typing import Any, get_type_hints

from omegaconf import OmegaConf

from .schema import CloudConfig, Config, fill, flatten
from .upgrades import BEFORE

GROUPS_MODULE = "skytrain.config.groups"
GLOBAL_PACKAGE = "# @package _global_"  # Hydra's directive for a file whose keys start at the root

# A user's group (budget/mine.yaml) may be older than a setting, and cloud=ec2 does not mention Slurm. What is left out
# has the value of these files.
SHARED_FILES = (
    "model/__decoder.yaml",
    "parallel/_base.yaml",
    "trainer/default.yaml",
    "optimizer/muon.yaml",
    "lr_schedule/wsd.yaml",
    "budget/none.yaml",
    "cloud/none.yaml",
    "tune/default.yaml",
    "serve/default.yaml",
)


@cache
def target_groups() -> tuple[str, ...]:
    """Return the groups of settings of launch targets: `cloud/none.yaml` leaves them out, and a file has those of one."""
    shared = file_settings("cloud/none.yaml")
    groups = [f"cloud.{name}" for name, kind in get_type_hints(CloudConfig).items() if dataclasses.is_dataclass(kind)]
    return tuple(group for group in groups if not any(key.startswith(f"{group}.") for key in shared))


@cache
def base_files() -> tuple[str, ...]:
    """Return the files that have the defaults of all settings: the shared ones, and one for each launch target."""
    folder = files(GROUPS_MODULE).joinpath("cloud")
    names = sorted(f"cloud/{file.name}" for file in folder.iterdir() if file.name.endswith(".yaml"))

    def most_complete(group: str) -> str:
        return max(names, key=lambda name: sum(key.startswith(f"{group}.") for key in file_settings(name)))

    return (*SHARED_FILES, *dict.fromkeys(most_complete(group) for group in target_groups()))


def choices_with(key: str) -> list[str]:
    """Return the built-in choices of a setting's group that have the setting, where others lack it: `cloud=eks`."""
    group = key.partition(".")[0]
    folder = files(GROUPS_MODULE).joinpath(group)
    if not folder.is_dir():
        return []
    names = sorted(file.name.removesuffix(".yaml") for file in folder.iterdir() if file.name.endswith(".yaml"))
    return [
        f"{group}={name}" for name in names if not name.startswith("_") and key in file_settings(f"{group}/{name}.yaml")
    ]


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
    if key in target_groups():
        return {}  # whose own settings are filled next
    if key.startswith(target_groups()) or name in BEFORE.get(group, {}):
        return next(
            (file_settings(file)[key] for file in base_files() if key in file_settings(file)), dataclasses.MISSING
        )
    return dataclasses.MISSING
