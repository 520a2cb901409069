"""The targets by their names, and what a request may ask of them.

Each folder of this package is a target: its `target.py` launches (`TARGETS`, by name), its `serve.py` serves (`TARGET`).
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable
from importlib import import_module
from typing import TYPE_CHECKING

from ..config import Config, ConfigError, SkytrainError, folders_with, load_class, nearest
from ..planning import EC2
from ..runs import LaunchRecord
from .base import LaunchRequest, LaunchTarget, NoTarget

if TYPE_CHECKING:
    from ..planning import JobKind, Seller, ServicePrices
    from .serving import ServeRequest, ServeTarget

PACKAGE = __name__.rpartition(".")[0]
WHAT: dict[JobKind, str] = {
    "train": "training runs",
    "prepare": "data is prepared",
    "tune": "sweeps run",
    "finish": "runs are evaluated and exported",
}


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
    known = folders_with(PACKAGE, "serve")
    if name not in known:
        raise SkytrainError(f"--target {name}: no such target\n  {_one_of(name, known)}")
    target: ServeTarget = import_module(f"{PACKAGE}.{name}.serve").TARGET
    return target


def check_serve_options(request: ServeRequest) -> None:
    """Raise SkytrainError for an option that was given and that the target does not read: it would have no effect."""
    reads = find_serve_target(request.target).reads
    for name in request.given():
        if name not in reads:
            others = [each for each in folders_with(PACKAGE, "serve") if name in find_serve_target(each).reads]
            raise SkytrainError(
                f"--{name.replace('_', '-')} has no effect with --target {request.target}\n"
                f"  leave it out, or serve elsewhere: --target {' or '.join(sorted(others))}"
            )


def find_target(name: str | None) -> LaunchTarget:
    """Return the target of a name, or of the path of a class: my_target.MyTarget."""
    if name is None:
        return NoTarget()
    if "." in name:
        return _own_target(name)
    target = built_in_target(name)
    if target is None:
        known = _folders_by_name()
        raise ConfigError(
            "cloud.target", f"{name!r}: no such target", hint=f"{_one_of(name, known)}, or package.module.Class"
        )
    return target


def built_in_target(name: str) -> LaunchTarget | None:
    """Return Skytrain's own target of this name, such as a record's. No class of a user is loaded."""
    folder = _folders_by_name().get(name)
    if folder is None:
        return None
    targets: dict[str, LaunchTarget] = import_module(f"{PACKAGE}.{folder}.target").TARGETS
    return targets[name]


def target_of_record(config: Config, record: LaunchRecord) -> LaunchTarget | None:
    """Return the target of a launch, if it is Skytrain's own or that of the configuration."""
    target = target_of(config)
    return target if target.name == record.target else built_in_target(record.target)


def built_in_targets() -> list[LaunchTarget]:
    """Return Skytrain's own targets of `launch`, by name."""
    return [find_target(name) for name in target_names()]


def sellers() -> list[Seller]:
    """Return whose machines `plan` can compare: those of targets with other prices, and EC2."""
    return [*(target.seller for target in built_in_targets() if target.seller is not None), EC2]


def service_prices() -> list[ServicePrices]:
    """Return the prices that `catalog refresh` fetches for targets, in addition to EC2's."""
    return [target.service_prices for target in built_in_targets() if target.service_prices is not None]


def find_seller(name: str) -> Seller:
    """Return the seller of `plan --target NAME`."""
    known = {seller.name: seller for seller in sellers()}
    if name not in known:
        raise SkytrainError(f"--target {name}: sells no machines\n  {_one_of(name, known)}")
    return known[name]


def billing_targets() -> list[LaunchTarget]:
    """Return the targets whose jobs cost what their service says, and not what a run's meter counts."""
    return [target for target in built_in_targets() if target.bills_jobs]


def _one_of(name: str, known: Iterable[str]) -> str:
    guess = nearest(name, known)
    return f"{f'did you mean {guess}? ' if guess else ''}one of {', '.join(sorted(known))}"


def _own_target(path: str) -> LaunchTarget:
    """Return an instance of the user's class; its name is its path unless it has another."""
    own = load_class(path, "cloud.target")
    base = f"{LaunchTarget.__module__}.{LaunchTarget.__name__}"
    if LaunchTarget not in getattr(own, "__mro__", ()):
        raise ConfigError("cloud.target", f"{path!r} is not a launch target", hint=f"make it a subclass of {base}")
    if own.prepare is LaunchTarget.prepare:
        raise ConfigError(
            "cloud.target", f"{path!r} has no method prepare", hint=f"write one; {base} says what it does"
        )
    try:
        inspect.signature(own).bind()
    except TypeError as error:
        raise ConfigError("cloud.target", f"{path!r}: {error}", hint="it is created without arguments") from None
    target: LaunchTarget = own()
    if not hasattr(target, "name"):
        target.name = path
    return target


def target_of(config: Config) -> LaunchTarget:
    """Return the target of a configuration."""
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
        others = ", ".join(f"cloud={each.name}" for each in built_in_targets() if job in each.jobs)
        raise SkytrainError(
            f"launch {job} {where}: only {only} there\n  launch it with one of {others}; or run skytrain {job}"
        )
    if request.replan and request.plan is None:
        raise SkytrainError("--replan needs --plan FILE: the plan to make again")
    if request.replan and target.size_setting:
        raise SkytrainError(
            f"--replan: {where} takes a plan as it is\n  make one again: skytrain plan --out {request.plan}"
        )
    rented = request.smoke is not None or request.keep_seconds or request.keep
    if job == "tune" and (rented or request.plan is not None):
        raise SkytrainError(
            "launch tune plans its machines itself\n  leave out --plan, --smoke, --keep and --keep-on-failure"
        )
    if rented and not target.can_smoke:
        raise SkytrainError(f"--smoke, --keep and --keep-on-failure: {where} has none of them\n  leave them out")
