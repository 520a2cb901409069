"""Follow a run until it ends. The terminal that launched it also replaces lost machines and tries the next offer."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Protocol

from ..aws import AwsSession, CloudError
from ..config import EXIT_CODES, INTERRUPTED, UNCOMMITTED, Config, SkytrainError, error_text
from ..runs import LaunchRecord, MetricsReader, is_settled, launches_of
from ..storage import StoreError, open_store
from .account import AccountMachine, account_state
from .base import NoTarget, SchedulerError
from .limits import ask_account, count_launches, ended_in_store
from .registry import target_of, target_of_record
from .run_status import LAUNCH_FAILED
from .run_view import RunView, RunWatch

LOOK_SECONDS = 10.0
TAGS_SECONDS = 30.0
TROUBLE_SECONDS = 60.0
SETTLE_LOOKS = 7  # at machines that give themselves back when the run is over
GONE_LOOKS = 2  # in a row without a machine or a request for one, before the launch counts as over
RESTART_SECONDS = 180.0  # in which a supervisor restarts a job that has failed
KILL_GRACE = timedelta(minutes=5)
FAILED_EXIT_CODE = 1
ENDED = {"done": "done", "stopped": "done", "budget": "budget", "interrupted": INTERRUPTED}


class Screen(Protocol):
    """Where a run is shown."""

    def show(self, view: RunView) -> None: ...

    def note(self, text: str) -> None: ...


@dataclass(frozen=True)
class RunEnd:
    """How a run ended, as its own command would."""

    exit_code: int
    reason: str


class RunFollower:
    """One run, watched. `session` reads machines by their tags.

    `launched`: this process has just launched the run, by `record` where that is given. It then replaces lost machines,
    and tries the next offer when there is no capacity. Machines can change what the store says of the launch of their
    run, so that it asks AWS by its own record only.
    """

    def __init__(
        self,
        config: Config,
        run: str,
        session: AwsSession | None = None,
        *,
        launched: bool = False,
        record: LaunchRecord | None = None,
    ) -> None:
        self._config = config
        self.run = run
        self._session = session
        self._store = open_store(config.store)
        launches = [] if record is not None else [one for one in launches_of(self._store, run) if not one.failed]
        self.record = launches[-1] if launches else record
        self._machines: tuple[AccountMachine, ...] = ()
        self._counts = launched  # others who watch may not write to the store
        self._count_at = 0.0
        self._tags_at = self._failed_at = 0.0
        self._gone = 0
        self._target = target_of_record(config, self.record) if self.record is not None else None
        self._try_next_offer = None
        if launched and session is not None and record is not None and self._target is not None:
            self._try_next_offer = self._target.next_offers(session, self._store, record)
        self._trouble: str | None = None
        self._trouble_at = 0.0
        self._metrics = MetricsReader(self._store, run)
        self._watch = RunWatch(
            self._store, run, self.record, self._read_machines, launched=launched, trouble=self._find_trouble
        )

    def look(self) -> RunView:
        return self._watch.look()

    def metrics(self) -> list[dict[str, Any]]:
        """Return the run's metrics so far; empty before it trains."""
        return self._metrics.read()

    def follow(self, screen: Screen, wait: Callable[[float], None] = time.sleep) -> RunEnd:
        """Show the run until it ends. Stores and services that do not answer are told once, and asked again."""
        told = ""
        while True:
            try:
                view = self.look()
                screen.show(view)
                if (end := self.end_of(view)) is not None:
                    if self._settle(screen.note, wait):
                        screen.show(self.look())
                    return end
                if (tried := self._try_next_offer() if self._try_next_offer else None) is not None:
                    screen.note(tried)
                self._count_machines(screen.note)
                told = ""
            except Exception as error:  # whatever it is, the next look may succeed
                if isinstance(error, SkytrainError) and not isinstance(error, StoreError | CloudError | SchedulerError):
                    raise  # there is no such run, or a record of it is damaged: waiting changes nothing
                if error_text(error) != told:
                    told = error_text(error)
                    screen.note(f"warning: {told}\n  asking again every few seconds; the machines go on")
            wait(LOOK_SECONDS)

    def _settle(self, tell: Callable[[str], None], wait: Callable[[float], None]) -> bool:
        """Count the last machines when EC2 knows their ends; True if it then knows those of all. Ctrl-C ends the wait.

        Nobody else may ask within the hour in which EC2 describes an ended machine.
        """
        rented = self._target is not None and self._target.has_tagged_machines
        if not self._counts or self._session is None or not rented:
            return False
        for look in range(SETTLE_LOOKS):
            try:
                wait(LOOK_SECONDS if look else 0.0)
            except KeyboardInterrupt:
                return False
            self._count_at = 0.0
            self._count_machines(tell)
            if is_settled(self._store, self.run):
                return True
        return False

    def _count_machines(self, tell: Callable[[str], None]) -> None:
        """Record, now and then, what machines cost that have not recorded it themselves."""
        if not self._counts or self._session is None or self.record is None or time.monotonic() < self._count_at:
            return
        self._count_at = time.monotonic() + TAGS_SECONDS
        count_launches(self._session, self._store, [self.record], tell)

    def end_of(self, view: RunView) -> RunEnd | None:
        """Return how the run ended; None while it continues."""
        state = view.status.state
        status = view.status
        if state == LAUNCH_FAILED:
            return RunEnd(FAILED_EXIT_CODE, f"{state}: nothing of it is left")
        if view.by_agents:
            return self._end_of_agents(view)
        if state in ENDED:
            return RunEnd(EXIT_CODES[ENDED[state]], _with_cause(state, view))
        if state != "failed":
            self._failed_at = 0.0
            return None
        self._failed_at = self._failed_at or time.monotonic()
        since = datetime.fromisoformat(status.since) if status.since else datetime.now(UTC)
        waited = max(time.monotonic() - self._failed_at, (datetime.now(UTC) - since).total_seconds())
        return RunEnd(FAILED_EXIT_CODE, f"failed: {status.reason}") if waited > RESTART_SECONDS else None

    def _end_of_agents(self, view: RunView) -> RunEnd | None:
        generation = view.generation
        record = self.record
        started_again = any(node.state in ("waits", "joins", "trains") for node in view.nodes)
        if generation is not None and generation.exit_code is not None and not started_again:
            ended = view.status.generation == generation.number and view.status.state in ENDED
            reason = view.status.state if ended else generation.end_reason or ""
            return RunEnd(generation.exit_code, _with_cause(reason, view))
        if record is None or any(node.state != "silent" for node in view.nodes):
            return None
        if view.status.state == "stopped" and not view.status.attempts:
            return RunEnd(EXIT_CODES["done"], "stopped before it began to train")
        if datetime.now(UTC) > record.over_at + KILL_GRACE:
            return self._without_outcome(view, f"AWS ended its machines at the kill time, {record.over_at.isoformat()}")
        self._gone = self._gone + 1 if self._has_machines(record) is False else 0
        if self._gone < GONE_LOOKS:
            return None
        target = self._target or NoTarget()  # a class of someone else's, which is not loaded here
        return self._without_outcome(view, target.gone_reason(self._store, record))

    def _has_machines(self, record: LaunchRecord) -> bool | None:
        """Return whether the launch has machines or a job, or waits for some. None: neither AWS nor the target can tell."""
        live = ask_account(self._session, self._store)(record) if self._session is not None else None
        target = target_of(self._config)
        if live is None and target.name == record.target:
            live = target.has_job(self._config, record.run)
        return False if live is None and ended_in_store(record, self._store) else live

    def _without_outcome(self, view: RunView, reason: str) -> RunEnd:
        saved = view.status.checkpoint_step is not None
        return RunEnd(EXIT_CODES[INTERRUPTED if saved else UNCOMMITTED], reason)

    def _read_machines(self) -> tuple[AccountMachine, ...]:
        if self._session is None or self.record is None or self._target is None or not self._target.has_tagged_machines:
            return ()
        if time.monotonic() >= self._tags_at:
            state = account_state(self._config, self._session, [self.run], self.run, [self.record.region])
            self._machines = state.machines
            self._tags_at = time.monotonic() + TAGS_SECONDS
        return self._machines

    def _find_trouble(self) -> str | None:
        """Return why machines ended before they did any work; asked less often than the run is looked at."""
        if self._session is None or self.record is None or self._target is None:
            return None
        if time.monotonic() >= self._trouble_at:
            try:
                self._trouble = self._target.trouble(self._session, self._store, self.record)
            except CloudError as error:  # a viewer may not ask everything; the rest of the view does not need it
                self._trouble = f"unknown: {error.problem}"
            self._trouble_at = time.monotonic() + TROUBLE_SECONDS
        return self._trouble


def _with_cause(reason: str, view: RunView) -> str:
    """Add what the run's last attempt recorded as the cause of its end."""
    return f"{reason}: {view.status.cause}" if view.status.cause and reason == view.status.state else reason
