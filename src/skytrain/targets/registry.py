"""The targets by their names, and what a request may ask of them.

Each folder of this package is a target: its `target.py` launches (`TARGETS`, by name), its `serve.py` serves (`TARGET`).
"""

from __future__ import annotations

import inspect
from importlib import import_module
from typing import TYPE_CHECKING

from ..config import Config, ConfigError, SkytrainError, folders_with, load_class, nearest
from .base import LaunchRequest, LaunchTarget, NoTarget

if TYPE_CHECKING:
    from ..planning import JobKind
    from .serving import ServeTarget

PACKAGE = __name__.rpartition(".")[0]
WHAT: dict[JobKind, str] = {"train": "training runs", "prepare": "data is prepared", "tune": "sweeps run"}


def target_names() -> list[str]:
    """Return the names of Skytrain's own targets of `launch`."""
    return sorted(_folders_by_name())


def _folders_by_name() -> dict[str, str]:
    """Return the folder of each launch target. One folder may have several targets, in `NAMES` of its `__init__`."""
    return {
        name: folder
        for folder in folders_with(PACKAGE, "target")
        for name in getattr(import_module(f"{PACKAGE}.{folder}"), "NAMES", (folder,))
    }


def find_serve_target(name: str) -> ServeTarget:
    """Return the target of `skytrain serve --target NAME`."""
    known = {each.name: each for each in _serve_targets()}
    if name not in known:
        guess = nearest(name, known)
        hint = f"did you mean {guess}? " if guess else ""
        raise SkytrainError(f"--target {name}: no such target\n  {hint}one of {', '.join(sorted(known))}")
    return known[name]


def _serve_targets() -> list[ServeTarget]:
    return [import_module(f"{PACKAGE}.{folder}.serve").TARGET for folder in folders_with(PACKAGE, "serve")]


def find_target(name: str | None) -> LaunchTarget:
    """The target of a name, or of the path of a class: my_target.MyTarget."""
    if name is None:
        return NoTarget()
    if "." in name:
        return _own_target(name)
    known = _folders_by_name()
    if name not in known:
        guess = nearest(name, known)
        hint = f"did you mean {guess}? " if guess else ""
        raise ConfigError(
            "cloud.target",
            f"{name!r}: no such target",
            hint=f"{hint}one of {', '.join(sorted(known))}, or package.module.Class",
        )
    targets: dict[str, LaunchTarget] = import_module(f"{PACKAGE}.{known[name]}.target").TARGETS
    return targets[name]


def _own_target(path: str) -> LaunchTarget:
    """An instance of the user's class; its name is its path unless it has another."""
    found = load_class(path, "cloud.target")
    base = f"{LaunchTarget.__module__}.{LaunchTarget.__name__}"
    if LaunchTarget not in getattr(found, "__mro__", ()):
        raise ConfigError("cloud.target", f"{path!r} is no launch target", hint=f"make it a subclass of {base}")
    if found.prepare is LaunchTarget.prepare:
        raise ConfigError(
            "cloud.target", f"{path!r} has no method prepare", hint=f"write one; {base} says what it does"
        )
    try:
        inspect.signature(found).bind()
    except TypeError as error:
        raise ConfigError("cloud.target", f"{path!r}: {error}", hint="it is created without arguments") from None
    made: LaunchTarget = found()
    if not hasattr(made, "name"):
        made.name = path
    return made


def target_of(config: Config) -> LaunchTarget:
    return find_target(config.cloud.target)


def check_request(target: LaunchTarget, request: LaunchRequest) -> None:
    """Raise for a job that the target does not run, and for options that would do nothing there."""
    job = request.job
    where = f"cloud={target.name}"
    if request.chooses and (job != "train" or target.size_setting):
        own = (
            f"{target.size_setting}=N" if target.size_setting else f"launch {job} chooses its machines by its settings"
        )
        raise SkytrainError(f"--instance, --nodes and --market choose rented machines for training\n  {own}")
    if job not in target.jobs:
        only = " and ".join(WHAT[each] for each in target.jobs)
        others = ", ".join(f"cloud={name}" for name in target_names() if job in find_target(name).jobs)
        raise SkytrainError(
            f"launch {job} {where}: only {only} there\n  launch it with one of {others}; or run skytrain {job}"
        )
    if request.replan and request.plan is None:
        raise SkytrainError("--replan needs --plan FILE: the plan to make again")
    if request.replan and target.size_setting:
        raise SkytrainError(
            f"--replan: {where} takes a plan as it is\n  make one again: skytrain plan --out {request.plan}"
        )
    rented = request.smoke is not None or request.keep_seconds
    if job == "tune" and (rented or request.plan is not None):
        raise SkytrainError("launch tune plans its machines itself\n  leave out --plan, --smoke and --keep-on-failure")
    if rented and not target.can_smoke:
        raise SkytrainError(f"--smoke and --keep-on-failure: {where} has neither\n  leave them out")
