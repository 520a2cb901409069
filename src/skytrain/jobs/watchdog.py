"""The watchdog, which explains why a job stopped: every rank publishes its state, and a silent rank is named.

Without it, a lost host would show as ranks that wait in a collective until the backend's timeout, then as a trace that names
neither the host nor the rank. There are two threads, since a call to a store whose host is gone may block: one exchanges
states with the store, the other checks the time.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from ..config import agent_keeps_store, format_seconds, has_torchrun_agent, visible
from . import flight_recorder
from .lifeline import lives
from .nodes import host_name, numbers, rendezvous_endpoint
from .ranks import LOST, LostRank, Ranks

if TYPE_CHECKING:
    from torch.distributed import Store

SILENT_SECONDS = 60.0  # a rank, or the store, that is silent for this long counts as lost
GRACE_SECONDS = 10.0  # time in which a rank can notice by itself that another has ended
RANKS_A_SECOND = 100  # a large job has fewer beats, since each rank reads all of them from one store


@dataclass(frozen=True)
class Beat:
    """The state that a rank publishes."""

    number: int
    host: str
    process: int  # its id on that host
    step: int
    doing: str
    moved: str  # changes whenever a collective begins or ends
    ended: str | None = None  # "done", "lost" (another rank), or its error


class Watchdog:
    """A rank's watch over the job. Call `at_step` after each step; `end_process` ends a job that cannot continue."""

    def __init__(
        self,
        store: Store,
        ranks: Ranks,
        timeout_seconds: float,
        end_process: Callable[[], None] = lambda: os._exit(1),
    ) -> None:
        # A separate connection: a connection serves one request at a time, and some take long.
        self._store: Store = store.clone()  # type: ignore[attr-defined]  # not in torch's type stubs
        self._ranks = ranks
        self._timeout = timeout_seconds
        self._end_process = end_process
        # A lost rank is named before the ranks that wait for it reach their timeout.
        self.silent_seconds = min(SILENT_SECONDS, timeout_seconds / 2)
        self._grace_seconds = min(GRACE_SECONDS, timeout_seconds / 2)
        self._interval = min(self.silent_seconds / 10, max(1.0, ranks.world_size / RANKS_A_SECOND))
        self._endpoint = rendezvous_endpoint()
        self._parent = os.getppid()
        self._keys = [f"skytrain/beat/{rank}" for rank in range(ranks.world_size)]
        self._lock = threading.Lock()
        self._mine = Beat(number=0, host=host_name(), process=os.getpid(), step=0, doing="starting", moved="")
        self._step = 0
        self._beats: dict[int, Beat] = {}
        self._closing = threading.Event()
        self._telling = threading.Lock()
        self._explaining = False
        self._tell()

    def start(self) -> None:
        """Start the threads, once all ranks have created their watchdog: reading waits for a missing beat."""
        now = self._answered_at = time.monotonic()
        everyone = range(self._ranks.world_size)
        self._changed_at, self._moved_at = dict.fromkeys(everyone, now), dict.fromkeys(everyone, now)
        self._ended_at: dict[int, float] = {}
        for work in (self._exchange_beats, self._check_time):
            threading.Thread(target=work, name=f"skytrain watchdog {work.__name__}", daemon=True).start()

    def at_step(self, step: int) -> None:
        self._step = step

    @contextmanager
    def guarding(self) -> Iterator[None]:
        """Publish an error to the other ranks, and raise LostRank if it means that another rank is lost."""
        try:
            yield
        except RuntimeError as error:
            if not any(word in str(error) for word in LOST):
                self._leave(_first_line(error))
                raise
            # torchrun sends SIGTERM to a node's ranks as soon as one of them is gone; this one explains first.
            signal.signal(signal.SIGTERM, lambda *_: None)  # not SIG_IGN, which children would inherit
            text = self._explain(_first_line(error))
            self._leave("lost")
            raise LostRank(text) from error
        except BaseException as error:
            self._leave(_first_line(error))
            raise

    def close(self) -> None:
        """Report that this rank is done. Rank 0, if it hosts the store, waits for the others to finish."""
        self._leave("done")
        if self._ranks.first and not agent_keeps_store():
            with contextlib.suppress(RuntimeError):  # a rank that is not done by then fails on its own
                self._store.wait([f"{key}/ended" for key in self._keys], timedelta(seconds=self._timeout))

    def _leave(self, how: str) -> None:
        # A call to a silent store may block for ever.
        if time.monotonic() - self._answered_at <= self.silent_seconds:
            # If the store is gone, so is the job, and nobody is left to tell.
            with contextlib.suppress(RuntimeError):
                self._tell(ended=how)
                self._store.set(f"{self._keys[self._ranks.rank]}/ended", "")
        self._closing.set()  # last, so that the time is still checked during these calls

    # The first thread exchanges beats with the store.

    def _exchange_beats(self) -> None:
        told_step = 0
        told_at = time.monotonic()
        while not self._closing.wait(self._interval / 5):
            if self._step == told_step and time.monotonic() - told_at < self._interval:
                continue
            told_step = self._step
            told_at = time.monotonic()
            moved, doing = flight_recorder.observe(self._mine.moved)
            doing = self._mine.doing if self._explaining else doing  # keep what it did when it failed
            try:
                self._tell(number=self._mine.number + 1, moved=moved, doing=doing)
                self._read()
            except RuntimeError:
                continue  # the store does not answer; the other thread checks for how long

    def _tell(self, **news: Any) -> None:
        with self._telling:
            if self._mine.ended is None:  # a rank that has ended publishes nothing more
                self._mine = replace(self._mine, step=self._step, **news)
                self._store.set(self._keys[self._ranks.rank], json.dumps(asdict(self._mine)))

    def _read(self) -> None:
        texts = self._store.multi_get(self._keys)
        now = time.monotonic()
        with self._lock:
            self._answered_at = now
            for rank, text in enumerate(texts):
                beat = Beat(**json.loads(text))
                before = self._beats.get(rank)
                if before is None or beat.number != before.number or beat.ended:
                    self._changed_at[rank] = now
                if beat.ended:
                    self._ended_at.setdefault(rank, now)
                if before is None or (beat.step, beat.moved) != (before.step, before.moved):
                    self._moved_at[rank] = now
                self._beats[rank] = beat

    # The second thread checks how old the beats are.

    def _check_time(self) -> None:
        while not self._closing.wait(self._interval / 2):
            if text := self._find_failure():
                self._stop(text)
                return

    def _find_failure(self) -> str | None:
        """Return why the job cannot continue, or None if it can."""
        now = time.monotonic()
        with self._lock:
            unheard = now - self._answered_at
            if unheard > self.silent_seconds:
                return (
                    f"{self._endpoint}, where the ranks of this job meet, has not answered {self._me()} for {unheard:.0f} s: "
                    f"rank 0, its node or the network in between is gone\n{self._state()}"
                )
            # Measured up to the store's last answer: while the store is silent, every rank seems silent.
            silent = {
                rank: now - at for rank, at in self._changed_at.items() if self._answered_at - at > self.silent_seconds
            }
            if silent:
                return f"{self._named(silent)} stopped answering {max(silent.values()):.0f} s ago\n{self._state(lost=silent)}"
            failed = [rank for rank, beat in self._beats.items() if beat.ended not in (None, "done", "lost")]
            if failed and max(now - self._ended_at[rank] for rank in failed) > self._grace_seconds:
                error = self._beats[failed[0]].ended
                return f"{self._named(failed)} ended with an error: {error}\n{self._state(lost=failed)}"
            working = [rank for rank, beat in self._beats.items() if beat.ended is None]
            still = min((now - self._moved_at[rank] for rank in working), default=0.0)
            if still > self._timeout:
                return f"nothing has moved for {still:.0f} s (parallel.timeout is {format_seconds(self._timeout)})\n{self._state()}"
        return None

    def _explain(self, error: str) -> str:
        """Explain a failed collective: the peer may have published its error, or becomes silent within a few beats."""
        self._explaining = True
        quiet = 4 * self._interval
        deadline = time.monotonic() + 2 * quiet
        while time.monotonic() < deadline:
            time.sleep(self._interval / 5)
            now = time.monotonic()
            with self._lock:
                gone = [rank for rank in self._changed_at if rank != self._ranks.rank and self._is_gone(rank, quiet)]
                if gone or now - self._answered_at > quiet:
                    break
        with self._lock:
            whose = (
                f"{self._named(gone)} is gone"
                if gone
                else f"{self._endpoint}, where the ranks of this job meet, does not answer"
                if time.monotonic() - self._answered_at > quiet
                else "another rank is gone"
            )
            told = "".join(
                f"\n  rank {rank} said: {self._beats[rank].ended}"
                for rank in gone
                if rank in self._beats and self._beats[rank].ended
            )
            return f"{whose}, and {self._me()} stops ({error}){told}\n{self._state(lost=gone)}"

    def _is_gone(self, rank: int, quiet_seconds: float) -> bool:
        beat = self._beats.get(rank)
        if beat is None or self._answered_at - self._changed_at[rank] > quiet_seconds:
            return beat is not None
        # On this node the process itself can be checked, without waiting for silence: torchrun does not wait long.
        here = rank // self._ranks.local_size == self._ranks.node
        return beat.ended not in (None, "lost") or (here and not lives(beat.process))

    def _stop(self, text: str) -> None:
        """Print the message on one rank of each node; the others wait, since torchrun ends them when one ends."""
        first = self._ranks.node * self._ranks.local_size
        here = range(first, first + self._ranks.local_size)
        heard = [
            rank
            for rank in here
            if rank == self._ranks.rank
            or (
                self._answered_at - self._changed_at[rank] <= self.silent_seconds
                and not (rank in self._beats and self._beats[rank].ended)
            )
        ]
        if self._ranks.rank == min(heard):
            print(visible(f"error: {text}"), file=sys.stderr, flush=True)  # noqa: T201  # the main thread may be blocked
        else:
            time.sleep(1.0)
        self._leave("lost")
        if time.monotonic() - self._answered_at > self.silent_seconds or self._a_node_is_silent():
            self._end_agent()
        self._end_process()

    def _a_node_is_silent(self) -> bool:
        """Return whether all ranks of some node are silent; a single hanging rank does not count."""
        size = self._ranks.local_size
        silent = {rank for rank, at in self._changed_at.items() if self._answered_at - at > self.silent_seconds}
        return any(silent >= set(range(node * size, (node + 1) * size)) for node in range(self._ranks.nodes))

    def _end_agent(self) -> None:
        """Kill torchrun's agent, which would wait for the lost node.

        If the rendezvous host is lost, it would wait in the store's socket and ignore signals.
        """
        under_torchrun = has_torchrun_agent() and os.getppid() == self._parent
        if under_torchrun and self._ranks.nodes > 1:
            time.sleep(2.0)  # all ranks of this node have printed and ended by then
            os.kill(self._parent, signal.SIGKILL)

    # Messages.

    def _me(self) -> str:
        return f"rank {self._ranks.rank} ({self._mine.host})"

    def _named(self, ranks: Iterable[int]) -> str:
        ranks = sorted(ranks)
        hosts = dict.fromkeys(self._beats[rank].host for rank in ranks if rank in self._beats)
        return f"rank {numbers(ranks)}" + (f" ({', '.join(hosts)})" if hosts else "")

    def _state(self, lost: Iterable[int] = ()) -> str:
        """Return where every rank was last; ranks at the same place share a line."""
        groups: dict[tuple[str, str], list[int]] = {}
        for rank, beat in self._beats.items():
            beat = self._mine if rank == self._ranks.rank else beat
            where = f"step {beat.step}, {beat.ended or beat.doing}"
            groups.setdefault((beat.host, where), []).append(rank)
        lines = [
            f"  rank {numbers(ranks)} ({host}) {'was last seen' if set(ranks) & set(lost) else 'is'} at {where}"
            for (host, where), ranks in groups.items()
        ]
        return "\n".join([*lines, "  the same command, on all nodes, resumes from the last checkpoint"])


def _first_line(error: BaseException) -> str:
    return f"{type(error).__name__}: {(str(error).splitlines() or [''])[0][:200]}"
