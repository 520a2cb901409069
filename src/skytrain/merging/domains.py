"""The file that names a seed model and its domains, for `skytrain branch` and `skytrain merge-report`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from reprlib import repr as short  # a few lines of YAML can repeat themselves to any length
from typing import Any

from ..config import SkytrainError, check_words_of_file, nearest
from ..storage import read_file

KEYS = ("seed", "settings", "weights_only", "at_step", "experts")


@dataclass(frozen=True)
class DomainsFile:
    """A seed, the settings that all experts share, and those of each expert: above all its data."""

    seed: str  # RUN@STEP, a folder or an llm.c file
    experts: dict[str, tuple[str, ...]]  # KEY=VALUE settings by the name of the domain
    settings: tuple[str, ...] = ()
    weights_only: bool = False  # experts start with a fresh optimizer
    at_step: int | None = None  # the position in the schedule, for weights that have none

    def overrides(self, domain: str) -> list[str]:
        return [*self.settings, *self.experts[domain]]

    def run_name(self, domain: str) -> str:
        """Return the name of the expert's run, which begins with the seed's, so that two forests do not collide."""
        return f"{Path(self.seed).name.partition('@')[0].removesuffix('.bin')}-{domain}"


def read_domains(path: Path, typed: Sequence[str] = (), folders: Sequence[Path] = ()) -> DomainsFile:
    """Read the YAML file; raises SkytrainError with what is wrong in it.

    It may be somebody else's: raises Untrusted if its settings name code that the person, who has `typed` others, has not.
    """
    domains = _parsed(path)
    for domain in domains.experts:
        check_words_of_file(domains.overrides(domain), typed, folders, str(path), "whoever made this file")
    return domains


def _parsed(path: Path) -> DomainsFile:
    import yaml  # type: ignore[import-untyped]

    try:
        content: Any = yaml.safe_load(read_file(path, remedy="see docs/merging.md"))
    except (OSError, yaml.YAMLError, RecursionError, ValueError) as error:
        if isinstance(error, SkytrainError):
            raise
        raise SkytrainError(f"{path} cannot be read: {error or type(error).__name__}") from None
    if not isinstance(content, dict):
        raise SkytrainError(f"{path} is not a mapping\n  it names `seed` and `experts`: see docs/merging.md")
    for key in content:
        if key not in KEYS:
            guess = nearest(str(key), list(KEYS))
            raise SkytrainError(f"{path}: unknown key {key!r}" + (f"\n  did you mean {guess}?" if guess else ""))
    experts = content.get("experts")
    if not isinstance(experts, dict) or len(experts) < 2:
        raise SkytrainError(f"{path}: `experts` must name two domains or more, each with its settings")
    if not isinstance(content.get("seed"), str):
        raise SkytrainError(f"{path}: `seed` must be RUN@STEP, a folder or a file, not {short(content.get('seed'))}")
    weights_only = content.get("weights_only", False)
    at_step = content.get("at_step")
    if not isinstance(weights_only, bool):
        raise SkytrainError(f"{path}: `weights_only` must be true or false, not {short(weights_only)}")
    if at_step is not None and (not isinstance(at_step, int) or isinstance(at_step, bool) or at_step < 0):
        raise SkytrainError(f"{path}: `at_step` must be a step of the schedule such as 2365, not {short(at_step)}")
    return DomainsFile(
        seed=content["seed"],
        experts={str(name): _overrides(path, f"experts.{name}", values) for name, values in experts.items()},
        settings=_overrides(path, "settings", content.get("settings", [])),
        weights_only=weights_only,
        at_step=at_step,
    )


def _overrides(path: Path, key: str, values: Any) -> tuple[str, ...]:
    if not isinstance(values, list) or not all(isinstance(each, str) and "=" in each for each in values):
        raise SkytrainError(f"{path}: `{key}` must be a list of KEY=VALUE settings, not {short(values)}")
    return tuple(values)
