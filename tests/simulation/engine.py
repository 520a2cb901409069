"""A scheduler with a clock of its own, for code that was written to block: one thread at a time, in an order that a seed decides.

Each actor is a thread that runs until it waits; then the actor whose wait ends first runs. So product code with its
loops, sleeps and requests is executed as it is, thousands of simulated seconds take milliseconds, and the same seed
gives the same run.
"""

from __future__ import annotations

import heapq
import random
import threading
import traceback
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

EPOCH = datetime(2026, 1, 1, tzinfo=UTC)


class Killed(BaseException):
    """The actor's process is gone: nothing that it still wants to do has an effect."""


class Actor:
    """One simulated process."""

    def __init__(self, engine: Engine, name: str, work: Callable[[], object]) -> None:
        self.name = name
        self.killed = False
        self.ended = False
        self.frozen_until = 0.0
        self.baton = threading.Semaphore(0)
        self._engine = engine
        self._work = work
        self.thread = threading.Thread(target=self._run, daemon=True, name=name)

    def _run(self) -> None:
        self.baton.acquire()
        try:
            if not self.killed:
                self._work()
        except Killed:
            pass
        except BaseException:
            self._engine.crashes.append(f"{self.name}: {traceback.format_exc()}")
        finally:
            self.ended = True
            self._engine.idle.release()


class Engine:
    """Runs actors in the order of their waits."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.now = 0.0
        self.crashes: list[str] = []  # actors that ended with an error, with its traceback
        self.idle = threading.Semaphore(0)
        self._queue: list[tuple[float, int, Actor | Callable[[], None]]] = []
        self._count = 0
        self._actors: list[Actor] = []
        self.current: Actor | None = None

    @property
    def time(self) -> datetime:
        return EPOCH + timedelta(seconds=self.now)

    def spawn(self, name: str, work: Callable[[], object], after: float = 0.0) -> Actor:
        actor = Actor(self, name, work)
        actor.thread.start()
        self._actors.append(actor)
        self._push(self.now + after, actor)
        return actor

    def later(self, seconds: float, do: Callable[[], None]) -> None:
        """Call a function of the simulation itself at a later time; it may not wait."""
        self._push(self.now + seconds, do)

    def sleep(self, seconds: float) -> None:
        """Let the current actor wait."""
        actor = self.current
        assert actor is not None, "only an actor may wait"
        if actor.killed:
            raise Killed
        self._push(self.now + max(0.0, seconds), actor)
        self.idle.release()
        actor.baton.acquire()
        if actor.killed:
            raise Killed

    def kill(self, actor: Actor) -> None:
        """End an actor where it waits."""
        if not actor.ended and not actor.killed:
            actor.killed = True
            if actor is not self.current:
                self._push(self.now, actor)

    def run(self, until: Callable[[], bool], limit_seconds: float) -> bool:
        """Run until the condition holds, and return whether it did within the limit."""
        end = self.now + limit_seconds
        while self._queue and not until():
            at, _, work = heapq.heappop(self._queue)
            if at > end:
                heapq.heappush(self._queue, (at, self._next(), work))
                self.now = end
                return until()
            self.now = max(self.now, at)
            if isinstance(work, Actor):
                self._resume(work)
            else:
                work()
        return until()

    def close(self) -> None:
        """End all threads."""
        for actor in self._actors:
            while not actor.ended:
                actor.killed = True
                self._resume(actor)

    def _resume(self, actor: Actor) -> None:
        if actor.ended:
            return
        if actor.frozen_until > self.now and not actor.killed:
            self._push(actor.frozen_until, actor)
            return
        self.current = actor
        actor.baton.release()
        self.idle.acquire()
        self.current = None

    def _push(self, at: float, work: Actor | Callable[[], None]) -> None:
        heapq.heappush(self._queue, (at, self._next(), work))

    def _next(self) -> int:
        self._count += 1
        return self._count


class SimulatedTime:
    """What product modules see in place of `time`."""

    CLOCK_BOOTTIME = 7

    def __init__(self, engine: Engine, time_of_day: Callable[[], datetime]) -> None:
        self._engine = engine
        self._time_of_day = time_of_day

    def monotonic(self) -> float:
        return self._engine.now

    def time(self) -> float:
        return self._time_of_day().timestamp()

    def clock_gettime(self, clock: int) -> float:
        return self._engine.now

    def sleep(self, seconds: float) -> None:
        self._engine.sleep(seconds)
