"""A sweep on a Slurm cluster: a job array whose tasks share it through the store, each requeued on its own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from ...config import Composed, ConfigError
from ...tuning import sweep_name
from ..jobs import machine_run
from .array import SlurmArray
from .launch import job_python, store_root


def prepare_sweep_array(composed: Composed, options: Sequence[str]) -> tuple[str, SlurmArray]:
    """The name of the sweep, and one task for each of `tune.machines`."""
    config = composed.config
    wanted = composed.config.cloud.slurm
    if config.tune.usd_per_hour is None and config.budget.usd_per_hour is None:
        raise ConfigError(
            "tune.usd_per_hour", "the cluster's nodes have no price", hint="set what an hour of one costs"
        )
    if config.budget.usd is None:
        raise ConfigError(
            "budget.usd", "is not set", hint="the dollars for search and final run, such as budget.usd=20"
        )
    name = sweep_name(config)
    folder = Path(wanted.folder).absolute()
    python = job_python(wanted)
    root = store_root(config)
    given = (f"tune.name={name}", f"store.root={root}")
    commands = tuple(
        (
            python,
            "-m",
            "skytrain",
            "tune",
            *composed.overrides,
            *options,
            *given,
            f"tune.host={machine_run(name, number)}",
        )
        for number in range(1, config.tune.machines + 1)
    )
    mounted = () if "://" in root else (root,)
    return name, SlurmArray(
        name=name,
        commands=commands,
        settings=replace(wanted, nodes=1),
        folder=folder / name,
        work_folder=Path.cwd(),
        folders=mounted,
    )
