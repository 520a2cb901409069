"""Machines that share a sweep: which are alive, which runs which trial, and what each costs in addition to trials.

A session is one process on one machine, with one or more slots that run trials at the same time. It writes a heartbeat
object; a session without one for a minute, or whose process on this machine has ended, leaves its trials to others.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import platform
import secrets
import statistics
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ..jobs import identify, is_alive
from ..runs import boot_clock, boot_id, read_spend
from ..storage import NotFound, Shape, StoreError, is_amount, is_clock, is_text, maybe, read_object
from .ledger import Entry, HourlyPrice, Ledger
from .sweeps import Claim, SweepState, SweepStore, trial_run

BEAT_SECONDS = 10.0  # between heartbeats, at most
FIRST_BEAT_SECONDS = 0.5  # and at first: a session that is killed is charged until its next heartbeat at the latest,
BEAT_SHARE = 0.005  # which is to be a small share of its time
PRESENT_SECONDS = 60.0  # a session without a heartbeat for this long is considered gone
ALLOWANCE_SECONDS = 20.0  # a machine's time between two trials and at the end, reserved in advance
WORKER: Shape = {
    "machine": is_text, "place": is_text, "process": is_text, "began": is_clock, "at": is_clock, "within": maybe(is_clock),
    "usd_per_hour": is_amount,
}  # fmt: skip
SESSION_END: Shape = {"place": is_text, "at": is_clock}
ENDING_SHARE = 0.02  # of the time that a process took to start: printing the answer takes less
RECENT_BEATS = 9  # by how much these were delayed says how busy the machine is now


@dataclass(frozen=True)
class TuneSession:
    """One process on one machine that works on a sweep. Times are by the machine's clock since boot."""

    name: str
    machine: str
    place: str  # the kernel and process namespace in which `process` is valid
    process: str
    began: float  # time from which the machine is charged
    usd_per_hour: float
    slots: int = 1

    @classmethod
    def here(cls, machine: str | None, began: float, price: HourlyPrice, slots: int) -> TuneSession:
        place = this_place()
        process = identify(os.getpid())
        machine = machine or f"{platform.node() or 'host'}-{place}"
        name = "".join(one if one.isalnum() or one == "-" else "-" for one in f"{machine}-{secrets.token_hex(4)}")
        return cls(
            name=name,
            machine=machine,
            place=place,
            process=process,
            began=began,
            usd_per_hour=price.usd_per_hour,
            slots=slots,
        )

    @property
    def slot_usd_per_second(self) -> float:
        return self.usd_per_hour / 3600 / self.slots

    def unfinished(self, state: SweepState) -> list[Claim]:
        """Return the trial that each slot runs, or was running when the session ended."""
        newest = {claim.worker: claim for claim in self._claims(state)}
        return [claim for claim in newest.values() if not self._finished(state, claim)]

    def finished_usd(self, state: SweepState) -> float:
        """Return what this session spent on the trials that it finished."""
        ended = [claim.number for claim in self._claims(state) if self._finished(state, claim)]
        return sum(float(state.history[number].extra.get("session_usd", 0.0)) for number in ended)

    def reserve_usd(self, state: SweepState, now: float) -> float:
        """Return the most that the machine costs in addition to its trials until those that run now have ended.

        An idle slot is paid for while the slowest trial runs, since a machine is given back as a whole.
        """
        running = self.unfinished(state)
        most = {one.number: one.most_usd for one in state.decisions}
        ends = [most[claim.number] / self.slot_usd_per_second - (now - claim.at) for claim in running]
        seconds = now - self.began + max(0.0, *ends, 0.0) + ALLOWANCE_SECONDS
        trials = self.finished_usd(state) + sum(most[claim.number] for claim in running)
        return max(0.0, self.usd_per_hour * seconds / 3600 - trials)

    def spent_usd(self, state: SweepState, now: float, recorded_usd: Callable[[int], float]) -> float:
        """Return what the machine has cost in addition to its trials when the session ends.

        An unfinished trial has cost what its run has recorded: the start-up of a process that was killed before that
        is the machine's.
        """
        trials = self.finished_usd(state)
        trials += sum(max(0.0, recorded_usd(claim.number) - claim.earlier_usd) for claim in self.unfinished(state))
        return max(0.0, self.usd_per_hour * (now - self.began) / 3600 - trials)

    def _claims(self, state: SweepState) -> list[Claim]:
        return [claim for claim in state.claims if claim.worker.startswith(f"{self.name}/")]

    def _finished(self, state: SweepState, claim: Claim) -> bool:
        result = state.history.get(claim.number)
        return result is not None and result.extra.get("worker") == claim.worker


class SweepHost:
    """This session among others: its heartbeat, its part of the ledger, and which others are alive."""

    def __init__(
        self, sweep: SweepStore, session: TuneSession, slot: int = 1, clock: Callable[[], float] = boot_clock
    ) -> None:
        self._sweep = sweep
        self.session = session
        self._slot = slot
        self.clock = clock
        self.measured_seconds = 0.0  # this session's time for estimates that the next one reads from the store
        self.start_seconds = 0.0  # of this process, before it knew the sweep
        self._due = math.inf  # when the next heartbeat should be written
        self._late = 0.0  # the longest that one was late
        self._delays: tuple[float, ...] = ()  # from when a heartbeat was due until it was written

    @property
    def worker(self) -> str:
        return f"{self.session.name}/{self._slot}"

    @property
    def entry(self) -> str:
        return f"overhead-{self.session.name}"

    def beat(self) -> float:
        """Write a heartbeat, and return after how many seconds the next one is due.

        `within` is when it comes at the latest: a busy machine delays heartbeats, by as much as it has done before.
        """
        now = self.clock()
        self._late = max(self._late, now - self._due)
        seconds = min(BEAT_SECONDS, max(FIRST_BEAT_SECONDS, BEAT_SHARE * (now - self.session.began)))
        record = {**asdict(self.session), "at": now, "within": min(BEAT_SECONDS, seconds + self._late)}
        self._sweep.store.write(self._key(self.session.name), json.dumps(record).encode())
        self._delays = (*self._delays, self.clock() - min(now, self._due))[-RECENT_BEATS:]
        self._due = now + seconds
        return seconds

    def others(self, *, by_clock: bool = False) -> list[str]:
        """Return the other sessions that are alive, by the store's clock.

        A caller that writes no heartbeat can only compare with its own clock (`by_clock`).
        """
        beats = {
            Path(stat.key).stem: stat.modified for stat in self._sweep.store.list(f"{self._sweep.folder}/workers/")
        }
        newest = time.time() if by_clock else max(beats.values(), default=0.0)
        recent = [name for name, modified in beats.items() if newest - modified <= PRESENT_SECONDS]
        return [name for name in recent if name != self.session.name and not self._gone(name)]

    def is_alive(self, worker: str) -> bool:
        name = worker.partition("/")[0]
        return name == self.session.name or name in self.others()

    def twin(self) -> TuneSession | None:
        """Return another session of a machine of this name that is alive, or was heard within the last minute.

        None means that this session owns the machine. If two ask at the same time, one creates the next claim and the
        other finds it. A session has a heartbeat before it claims.
        """
        folder = f"{self._sweep.folder}/machines/{machine_key(self.session.machine)}"
        while True:
            claims = sorted(stat.key for stat in self._sweep.store.list(f"{folder}/"))
            holder = TuneSession(**read_object(self._sweep.store, claims[-1])) if claims else None
            if holder is not None and (holder == self.session or holder.name in self.others()):
                return None if holder == self.session else holder
            turn = 1 + int(Path(claims[-1]).stem) if claims else 1
            if self._sweep.store.create(f"{folder}/{turn:06d}.json", json.dumps(asdict(self.session)).encode()):
                return None

    def withdraw(self) -> None:
        """Remove the heartbeat: this session does not work on the sweep."""
        self._sweep.store.delete(self._key(self.session.name))

    def can_wait(self, ledger: Ledger, state: SweepState) -> bool:
        """Return whether there is money to wait for other workers; while a trial of this machine runs, waiting is free."""
        if self.session.unfinished(state):
            return True
        return ledger.left_usd >= self.cushion_usd() + self.session.usd_per_hour * ALLOWANCE_SECONDS / 3600

    def cushion_usd(self) -> float:
        """Return what other machines may add to their reserves while this one decides."""
        return len(self.others()) * self.session.usd_per_hour * ALLOWANCE_SECONDS / 3600

    def start_usd(self) -> float:
        """Return what starting again would cost, if it takes as long as it did until now.

        Steps are not measured again, but part of their time was spent on loading libraries.
        """
        seconds = self.clock() - self.session.began
        return self.session.usd_per_hour * min(seconds, seconds - self.measured_seconds + ALLOWANCE_SECONDS) / 3600

    def _gone(self, name: str) -> bool:
        """Return whether a session was a process of this machine that has ended."""
        record = self._record(name)
        return record is None or (record["place"] == self.session.place and not is_alive(record["process"]))

    def _record(self, name: str) -> dict[str, Any] | None:
        with suppress(NotFound):
            return read_object(self._sweep.store, self._key(name), WORKER)
        return None

    def reserve(self, ledger: Ledger, state: SweepState) -> None:
        """Reserve what this machine costs in addition to the trials that run on it."""
        ledger.replace(Entry(self.entry, self.session.reserve_usd(state, self.clock())))

    def count_spent(self, ledger: Ledger, state: SweepState) -> None:
        """Replace the reserve by what this machine has cost in addition to its trials until now."""
        ledger.count(Entry(self.entry, ledger.entry(self.entry).reserved_usd, self._spent_usd(state)))

    def recorded_usd(self, number: int) -> float:
        """Return what the run of a trial has recorded as its cost."""
        spend = read_spend(self._sweep.store, trial_run(self._sweep.name, number))
        return sum(count.usd for count in spend.counts.values())

    def leave(self, ledger: Ledger, state: SweepState) -> None:
        """Charge what this machine has cost in addition to its trials, and end the heartbeat.

        A store that took longer for that than was expected of the whole end is charged too.
        """
        until = self.clock() + self._ending_seconds()
        ledger.charge(self.entry, self._spent_usd(state))
        self._record_end(self.session, until)
        self.withdraw()
        if self.clock() > until:
            ledger.charge(self.entry, self._spent_usd(state))

    def _spent_usd(self, state: SweepState) -> float:
        """Return what this machine has cost in addition to its trials, with the end of this process."""
        return self.session.spent_usd(state, self.clock() + self._ending_seconds(), self.recorded_usd)

    def _ending_seconds(self) -> float:
        """Return how long this process will take to end: its own work, and what the machine delays that by now.

        The end cannot be measured before it has come, but recent heartbeats were as small a piece of work. Single ones
        waited for something else, such as loading torch.
        """
        delay = statistics.median(self._delays) if self._delays else 0.0
        return ENDING_SHARE * self.start_seconds + min(BEAT_SECONDS, delay)

    def settle(self, ledger: Ledger, state: SweepState) -> None:
        """Charge sessions that have ended without doing so, up to their last heartbeat."""
        alive = self.others()
        for stat in self._sweep.store.list(f"{self._sweep.folder}/workers/"):
            name = Path(stat.key).stem
            record = None if name == self.session.name or name in alive else self._record(name)
            if record is not None:
                at = _heard_until(record)
                session = TuneSession(**{key: value for key, value in record.items() if key not in ("at", "within")})
                ledger.charge(f"overhead-{name}", session.spent_usd(state, at, self.recorded_usd))
                self._record_end(session, at)
                self._sweep.store.delete(stat.key)

    def _record_end(self, session: TuneSession, at: float) -> None:
        """Record until when a session's machine is charged: it may be rented, and begin another session."""
        end = json.dumps({"place": session.place, "at": at})
        self._sweep.store.write(end_key(self._sweep, session.machine), end.encode())

    def _key(self, name: str) -> str:
        return f"{self._sweep.folder}/workers/{name}.json"


class Heartbeats:
    """A thread that writes a host's heartbeat. If the store cannot be reached, the next beat tries again."""

    def __init__(self, host: SweepHost) -> None:
        self._host = host
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._seconds = FIRST_BEAT_SECONDS

    def __enter__(self) -> Heartbeats:
        self._seconds = self._host.beat()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stop.wait(self._seconds):
            with suppress(StoreError):
                self._seconds = self._host.beat()


def this_place() -> str:
    """Return the name of this kernel and process namespace: within it, a process id identifies one process."""
    try:
        namespace = Path("/proc/self/ns/pid").readlink().name
    except OSError:  # not on Linux
        namespace = ""
    return hashlib.sha256(f"{boot_id()} {namespace}".encode()).hexdigest()[:8]


def live_sessions(sweep: SweepStore) -> list[str]:
    """Return the sessions that work on a sweep, as seen from a machine that may not be one of them."""
    onlooker = TuneSession(name="", machine="", place=this_place(), process="", began=0.0, usd_per_hour=0.0)
    return SweepHost(sweep, onlooker).others(by_clock=True)


def _heard_until(record: dict[str, Any]) -> float:
    """Return when the next heartbeat after the last one would have come at the latest."""
    within = record.get("within")
    return float(record["at"]) + (BEAT_SECONDS if within is None else within)


def machine_key(machine: str) -> str:
    """Return a machine's name, which may be any text, as a key."""
    return hashlib.sha256(machine.encode()).hexdigest()[:16]


def end_key(sweep: SweepStore, machine: str) -> str:
    return f"{sweep.folder}/ends/{machine_key(machine)}.json"


def charged_until(sweep: SweepStore, machine: str) -> float | None:
    """Return until when earlier sessions of this machine are charged, by its clock; None if there was none."""
    beats = [read_object(sweep.store, stat.key, WORKER) for stat in sweep.store.list(f"{sweep.folder}/workers/")]
    ends = [(one["place"], _heard_until(one)) for one in beats if one["machine"] == machine]  # killed, not settled yet
    with suppress(NotFound):
        end = read_object(sweep.store, end_key(sweep, machine), SESSION_END)
        ends.append((end["place"], end["at"]))
    here = this_place()  # a machine's clock begins anew with each boot
    return max((at for place, at in ends if place == here), default=None)
