"""The life of a launch, the same on every target: checks, record, requests, and a rollback if one of them fails.

    prepare    checks and requests as data; nothing is created
    upload     packages, which another launch may use too
    record     the launch's number, created only if nobody else has taken it
    create     the requests, in order; the service's answers confirm them
    roll back  after any failure and after Ctrl-C: what was created is removed, and the record says that it failed

A target says what is created and how it is removed. If the removal cannot be confirmed, the record stays that of a
launch that may have machines, and the user is told where to look.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Generic, TypeVar

from ..config import SkytrainError
from ..runs import LaunchRecord, Reporter, create_launch, launch_folder, mark_failed
from ..storage import Store, StoreError

T = TypeVar("T")


class MachinesLeft(SkytrainError):
    """Machines that could not be removed; the message has the command that ends them."""


@dataclass(frozen=True)
class LaunchSteps(Generic[T]):
    """What one launch does after the user has confirmed."""

    store: Store
    record: LaunchRecord
    create: Callable[[], T]  # sends the requests; returns what the service answered
    remove: Callable[[BaseException], None]  # given the failure; raises SkytrainError unless all is gone
    may_have_created: Callable[[BaseException], bool] = lambda error: (
        True
    )  # False: what has its name belongs to another launch
    upload: Callable[[Reporter], object] = lambda reporter: None
    files: Mapping[str, bytes] | None = None  # for the launch's folder, by name


def run_launch(launch: LaunchSteps[T], reporter: Reporter) -> T:
    """Start a launch. A failure leaves nothing running."""
    launch.upload(reporter)
    create_launch(launch.store, launch.record)  # first: it claims the folder, which another launch may hold
    with rollback_on_error(lambda error: roll_back(launch, error, reporter)):
        for name, body in (launch.files or {}).items():
            launch.store.write(f"{launch_folder(launch.record)}/{name}", body)
        return launch.create()


def roll_back(launch: LaunchSteps[T], error: BaseException, reporter: Reporter) -> None:
    """Remove what a launch has created, and record that it failed.

    Raises nothing: the caller raises the failure itself again.
    """
    record = launch.record
    if not launch.may_have_created(error):
        return
    try:
        reporter.note("the launch failed: removing what it had created")
        launch.remove(error)
        mark_failed(launch.store, record)
    except (MachinesLeft, StoreError) as problem:
        reporter.note(f"warning: {problem}")
    except SkytrainError as problem:
        reporter.note(f"warning: {problem}\n  see: skytrain status {shlex.quote(record.run)} {record.target_word}")


@contextmanager
def rollback_on_error(undo: Callable[[BaseException], None]) -> Iterator[None]:
    """Call `undo` if anything fails within, Ctrl-C included, and raise the failure again."""
    try:
        yield
    except BaseException as error:
        undo(error)
        raise
