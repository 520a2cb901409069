"""Prefetches shards in a thread: fetches the ones that the sample order needs next and releases those already read."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from typing import Protocol

import numpy as np

from ..config import SkytrainError, format_bytes, format_seconds
from .cache import Cancelled

log = logging.getLogger("skytrain.tokens")

BUSY_SECONDS = 0.02
IDLE_SECONDS = 1.0
CLOSE_SECONDS = 1.0
SAY_SECONDS = 10.0


class Releasable(Protocol):
    def release(self) -> None: ...


class ShardStream:
    """A stream that keeps the shards around the reader's position local, in order of use, within `limit_bytes`.

    The stream plans in chunks of positions. The shards of a chunk come from the sample order, so only shards that
    are used next are fetched. Chunks behind the reader are released. Every rank of a node streams the same
    positions, so together they hold one set of shards; while one rank fetches a shard, the others fetch the next.
    """

    def __init__(
        self,
        supply: Callable[[int, Callable[[], bool]], Releasable | None],
        shards_of: Callable[[int, int], Iterable[int]],
        shard_bytes: np.ndarray,
        limit_bytes: int | None,
        chunk: int,
        wait_seconds: float = 600.0,
    ) -> None:
        """Create a stream; `start` begins fetching.

        `supply(shard, cancelled)` makes a shard local, or returns None while other processes fetch it or use the
        space. `shards_of(start, end)` returns the shards of a range of positions in order of first use, none past
        the end of the run. `wait_seconds` limits the wait for other processes; `supply` itself waits for the store.
        """
        self._supply = supply
        self._shards_of = shards_of
        self._bytes = shard_bytes
        self._limit = limit_bytes
        self._chunk = chunk
        self._wait_seconds = wait_seconds
        self._reader_waits = False
        self._stuck_since: float | None = None  # since when progress depends on other processes only
        self._planned: deque[tuple[int, list[int]]] = (
            deque()
        )  # (chunk, its shards), starting near the reader, as many as fit
        self._uses: dict[int, int] = {}  # how many planned chunks use each shard, in order of first use
        self._planned_bytes = 0
        self._held: dict[int, Releasable] = {}
        self._reader_chunk = 0
        self._changed = threading.Condition()
        self._error: BaseException | None = None
        self._closed = False
        self._said = False

    def start(self, position: int) -> None:
        self._reader_chunk = position // self._chunk
        self._thread = threading.Thread(target=self._run, name="shard-stream", daemon=True)
        self._thread.start()

    def wait_for(self, position: int, shards: Iterable[int]) -> None:
        """Block until these shards are local. Positions before `position` will not be read again."""
        with self._changed:
            if position // self._chunk > self._reader_chunk:
                self._reader_chunk = position // self._chunk
                self._changed.notify_all()
            self._reader_waits = not all(shard in self._held for shard in shards)
            if self._reader_waits:
                self._changed.notify_all()
            began = time.monotonic()
            while self._error is None and not all(shard in self._held for shard in shards):
                self._changed.wait(IDLE_SECONDS)
                if self._stuck_since is not None:
                    self._be_patient(time.monotonic() - max(began, self._stuck_since))
            self._reader_waits = False
            if self._error is not None:
                raise self._error

    def _be_patient(self, waited_seconds: float) -> None:
        if not self._said and waited_seconds > min(SAY_SECONDS, self._wait_seconds):
            log.warning("waiting up to %s for other processes that use the cache", format_seconds(self._wait_seconds))
            self._said = True
        if waited_seconds > self._wait_seconds:
            raise SkytrainError(
                f"waited {format_seconds(waited_seconds)} for shards that other processes fetch, or for room in the cache that they take up\n"
                "  give this run its own loader.cache_dir, or a larger loader.cache_limit"
            )

    def close(self) -> None:
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        # A download in progress may take minutes: the thread releases its shard when it ends.
        self._thread.join(CLOSE_SECONDS)

    def _run(self) -> None:
        try:
            while not self._closed:
                with self._changed:
                    self._let_go()
                    missing = self._missing()
                    if not missing and not self._plan_another():
                        self._changed.wait()
                        continue
                # Slow work is done without holding the lock.
                got = next(
                    (
                        (shard, pin)
                        for shard in missing
                        if (pin := self._supply(shard, lambda: self._closed)) is not None
                    ),
                    None,
                )
                with self._changed:
                    if got is not None:
                        self._held[got[0]] = got[1]
                        self._stuck_since = None
                        self._changed.notify_all()
                    elif missing:
                        self._stuck_since = self._stuck_since or time.monotonic()
                        # A prefetch can wait until the reader has moved on and released a shard.
                        self._changed.wait(BUSY_SECONDS if self._reader_waits else IDLE_SECONDS)
        except Cancelled:
            pass
        except BaseException as error:  # passed to the reader thread, which raises it
            with self._changed:
                self._error = error
                self._changed.notify_all()
        finally:
            for pin in self._held.values():
                pin.release()

    def _let_go(self) -> None:
        # Keep one chunk behind the reader: data loader workers may still be reading earlier batches.
        while self._planned and self._planned[0][0] < self._reader_chunk - 1:
            for shard in self._planned.popleft()[1]:
                self._uses[shard] -= 1
                if not self._uses[shard]:
                    del self._uses[shard]
                    self._planned_bytes -= int(self._bytes[shard])
                    if shard in self._held:
                        self._held.pop(shard).release()

    def _missing(self) -> list[int]:
        return [shard for shard in self._uses if shard not in self._held]

    def _plan_another(self) -> bool:
        """Plan one more chunk if it fits; return False if there is nothing more to do now."""
        chunk = self._planned[-1][0] + 1 if self._planned else self._reader_chunk
        if len(self._uses) == len(self._bytes) and chunk > self._reader_chunk + 1:
            return False
        shards = list(self._shards_of(chunk * self._chunk, (chunk + 1) * self._chunk))
        if not shards:
            return False
        more = sum(int(self._bytes[shard]) for shard in shards if shard not in self._uses)
        if self._limit is not None and self._planned_bytes + more > self._limit:
            # Ranks drift apart by less than a chunk, so each needs the reader's chunk, the previous and the next one.
            if chunk <= self._reader_chunk + 1:
                raise SkytrainError(
                    f"the cache may hold {format_bytes(self._limit)}, and this order of samples needs {format_bytes(self._planned_bytes + more)} at once\n"
                    "  set a larger loader.cache_limit, a smaller loader.block_shards, or prepare smaller shards (data.shard_tokens)"
                )
            return False
        for shard in shards:
            self._uses[shard] = self._uses.get(shard, 0) + 1
        self._planned_bytes += more
        self._planned.append((chunk, shards))
        return True
