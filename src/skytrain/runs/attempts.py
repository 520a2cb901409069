"""Attempts at a run: each start of its processes is one, and only the newest may add to the run.

Nobody can stop an older attempt that was cut off and wakes up, so nothing depends on its good behaviour: a new attempt
records the step from which it resumes, and what an older one commits beyond that step does not count.
"""

from __future__ import annotations

import json
import platform
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from ..config import SkytrainError
from ..storage import NotFound, Store
from .exits import EXIT_CODES, OUTCOMES, SUPERSEDED
from .reading import DamagedRecord, read_object


class Superseded(SkytrainError):
    """A newer attempt at the run has begun, so this one must stop."""

    exit_code = EXIT_CODES[SUPERSEDED]

    def __init__(self, run: str, attempt: int, newest: int, newest_host: str) -> None:
        super().__init__(
            f"run {run!r}: attempt {newest} on {newest_host} has taken over from this one, attempt {attempt}, which stops\n"
            "  nothing was overwritten; two runs at once need two names: run=NAME"
        )


def now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


def attempt_key(run: str, attempt: int) -> str:
    return f"runs/{run}/attempts/{attempt}"


def attempt_numbers(store: Store, run: str) -> list[int]:
    """The numbers of all attempts, in order."""
    return sorted(int(name) for name in store.folders(f"runs/{run}/attempts/") if name.isdigit())


def claim_attempt(store: Store, run: str, **facts: Any) -> int:
    """The next attempt number, ours alone: two starters never get the same one. `facts` are kept with it."""
    number = 1 + max(attempt_numbers(store, run), default=-1)
    body = json.dumps({"started_at": now(), "host": platform.node(), **facts}).encode()
    while not store.create(f"{attempt_key(run, number)}/attempt.json", body):
        number += 1
    return number


def read_attempt(store: Store, run: str, attempt: int) -> dict[str, Any]:
    """What was written down when it was claimed: `started_at`, `host` and its facts."""
    return _read(store, run, attempt, "attempt.json")


def check_newest(store: Store, run: str, attempt: int) -> None:
    """Raise Superseded when another attempt came after this one."""
    newest = max(attempt_numbers(store, run), default=attempt)
    if newest > attempt:
        raise Superseded(run, attempt, newest, str(_read(store, run, newest, "attempt.json").get("host", "?")))


def record_resume(store: Store, run: str, attempt: int, step: int) -> None:
    """Records, once and before any training, after which step this attempt resumes.

    And where those before it did, so that a reader needs the newest one's word alone, however many there were.
    """
    body = {"step": step, "before": read_fence(store, run).resumed}
    created = store.create(f"{attempt_key(run, attempt)}/resumed.json", json.dumps(body).encode())
    assert created, f"attempt {attempt} of {run} records twice where it resumes"


@dataclass(frozen=True)
class Fence:
    """Where each attempt of a run went on."""

    resumed: dict[int, int]  # attempt -> step

    def admits(self, attempt: int, step: int) -> bool:
        """Whether what `attempt` made at `step` belongs to the run: no later attempt went on from before it."""
        return all(step <= start for later, start in self.resumed.items() if later > attempt)


def read_fence(store: Store, run: str) -> Fence:
    """As the newest attempt wrote it down. One that has not recorded where it resumes has trained nothing, and bars nothing;
    nor does one that says so when a newer attempt has already begun to train.
    """
    for number in reversed(attempt_numbers(store, run)):
        found = _read(store, run, number, "resumed.json")
        if found:
            try:
                before = {int(earlier): int(step) for earlier, step in found["before"].items()}
                return Fence({**before, number: int(found["step"])})
            except (KeyError, TypeError, ValueError, AttributeError) as error:
                raise DamagedRecord(store, f"{attempt_key(run, number)}/resumed.json", error) from None
    return Fence({})


@dataclass(frozen=True)
class Cause:
    """What ended an attempt, in words, and on which host."""

    text: str
    host: str = field(default_factory=platform.node)


def write_outcome(
    store: Store, run: str, attempt: int, outcome: str, step: int | None, cause: Cause | None = None
) -> None:
    """How an attempt ended on purpose: `done`, `stopped` (early, as asked), `budget`, `interrupted` or `superseded`."""
    assert outcome in OUTCOMES, outcome
    cause = cause or Cause(outcome)
    body = {"outcome": outcome, "cause": cause.text, "host": cause.host, "step": step, "ended_at": now()}
    store.write(f"{attempt_key(run, attempt)}/outcome.json", json.dumps(body).encode())


def read_outcome(store: Store, run: str, attempt: int) -> dict[str, Any] | None:
    """None while it runs, and after a crash."""
    return _read(store, run, attempt, "outcome.json") or None


def _read(store: Store, run: str, attempt: int, name: str) -> dict[str, Any]:
    try:
        return read_object(store, f"{attempt_key(run, attempt)}/{name}")
    except NotFound:
        return {}
