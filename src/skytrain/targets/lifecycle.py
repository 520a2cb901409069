"""The life of a launch, the same on every target: checks, record, requests, and a rollback if one of them fails.

    prepare    checks and requests as data; nothing is created
    upload     packages, which another launch may use too
    record     the launch's number, created only if nobody else has taken it
    take over  earlier launches that have not made all their requests can make no other
    create     the requests, in order, each only if no other launch has taken over; the service's answers confirm them
    roll back  after any failure and after Ctrl-C: what was created is removed, and the record says that it failed

A target says what is created and how it is removed. If the removal cannot be confirmed, the record stays that of a
launch that may have machines, and the user is told where to look.
"""

from __future__ import annotations

import shlex
import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Generic, TypeVar

from ..config import SkytrainError, error_text
from ..runs import (
    NEVER,
    LaunchFence,
    LaunchRecord,
    Reporter,
    create_launch,
    inputs_folder,
    launches_of,
    mark_failed,
    supersede_launch,
)
from ..storage import Store, StoreError

T = TypeVar("T")
Advance = Callable[[], None]  # raises unless the launch may make its next request
STILL_REMOVING = "still removing what the launch had created: what is left costs money"
UNINTERRUPTED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class MachinesLeft(SkytrainError):
    """Machines that could not be removed; the message has the command that ends them."""


@dataclass(frozen=True)
class LaunchSteps(Generic[T]):
    """What one launch does after the user has confirmed."""

    store: Store
    record: LaunchRecord
    create: Callable[[Advance], T]  # sends the requests, each after an `advance()`; returns what the service answered
    remove: Callable[[BaseException], None]  # given the failure; raises SkytrainError unless all is gone
    may_have_created: Callable[[BaseException], bool] = lambda error: (
        True
    )  # False: what has its name belongs to another launch
    upload: Callable[[Reporter], object] = lambda reporter: None
    inputs: Mapping[str, bytes] | None = None  # its plan and what its machines run, by name; only operators write there
    check_alone: Callable[[], object] = lambda: None  # raises if an earlier launch of the run has machines after all


def run_launch(launch: LaunchSteps[T], reporter: Reporter) -> T:
    """Start a launch. A failure leaves nothing running."""
    with interrupted_once(reporter):
        return _run_launch(launch, reporter)


def _run_launch(launch: LaunchSteps[T], reporter: Reporter) -> T:
    launch.upload(reporter)
    create_launch(launch.store, launch.record)  # first: it claims the folder, which another launch may hold
    with rollback_on_error(lambda error: mark_failed(launch.store, launch.record)):
        _take_over(launch)
    fence = LaunchFence(launch.store, launch.record)
    with rollback_on_error(lambda error: roll_back(launch, error, reporter)):
        for name, body in (launch.inputs or {}).items():
            launch.store.write(f"{inputs_folder(launch.record.run, launch.record.id)}/{name}", body)
        fence.advance()
        answer = launch.create(fence.advance)
        fence.advance()  # it may have slept before its last request: what that created is removed then
        return answer


def _take_over(launch: LaunchSteps[T]) -> None:
    """Take the run over from its earlier launches: one that has not made all its requests yet can make no other.

    What such a launch has asked for in the meantime is found by `check_alone`, and its machines end themselves.
    """
    record = launch.record
    now = datetime.now(UTC)
    for earlier in launches_of(launch.store, record.run):
        if earlier.id < record.id and not earlier.failed and earlier.over_at > now:
            supersede_launch(launch.store, earlier, record.id)
    launch.check_alone()


def roll_back(launch: LaunchSteps[T], error: BaseException, reporter: Reporter) -> None:
    """Remove what a launch has created, and record that it failed.

    Raises nothing: the caller raises the failure itself again.
    """
    record = launch.record
    if not launch.may_have_created(error):
        return
    run = shlex.quote(record.run)
    with uninterrupted(lambda: reporter.note(STILL_REMOVING)):
        try:
            reporter.note("the launch failed: removing what it had created")
            launch.remove(error)
            mark_failed(launch.store, record)
        except (MachinesLeft, StoreError) as problem:
            reporter.note(f"warning: {problem}")
        except Exception as problem:  # whatever it is, people must know what may run
            reporter.note(
                f"warning: {error_text(problem)}\n  {described_groups(record)} may be left\n"
                f"  see: skytrain status {run} {record.target_word}; end them: skytrain stop {run} {record.target_word}"
            )


def described_groups(record: LaunchRecord) -> str:
    """Return what a launch may have rented, by name, and when that ends if nobody does anything."""
    groups = ", ".join(f"{group.name} ({group.text})" for group in record.groups)
    ends = f", which ends at {record.over_at.isoformat()}" if record.over_at < NEVER else ""
    return f"{groups}{ends}"


@contextmanager
def uninterrupted(tell: Callable[[], None]) -> Iterator[None]:
    """Let no signal end this block: Ctrl-C, a closed terminal and SIGTERM are only answered by `tell`.

    Python sets signal handlers in the main thread only; in another thread, signals do not arrive anyway.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    former = {number: signal.signal(number, lambda *_: tell()) for number in UNINTERRUPTED}
    try:
        yield
    finally:
        for number, handler in former.items():
            signal.signal(number, handler)


class _FirstInterrupt:
    """A handler of SIGINT that raises KeyboardInterrupt once, and only answers after that."""

    def __init__(self, reporter: Reporter) -> None:
        self._reporter = reporter
        self._raised = False

    def __call__(self, *_: object) -> None:
        if self._raised:
            self._reporter.note(STILL_REMOVING)
            return
        self._raised = True
        raise KeyboardInterrupt


@contextmanager
def interrupted_once(reporter: Reporter) -> Iterator[None]:
    """Let the first Ctrl-C end this block, and no other one.

    A second one could come after the first has ended the launch, and before its removal has begun or between two removals.
    """
    former = signal.getsignal(signal.SIGINT)
    here = threading.current_thread() is threading.main_thread() and former is signal.default_int_handler
    if not here:  # within another such block, or Ctrl-C does something else
        yield
        return
    signal.signal(signal.SIGINT, _FirstInterrupt(reporter))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, former)


@contextmanager
def rollback_on_error(undo: Callable[[BaseException], None]) -> Iterator[None]:
    """Call `undo` if anything fails within, Ctrl-C included, and raise the failure again."""
    try:
        yield
    except BaseException as error:
        undo(error)
        raise
