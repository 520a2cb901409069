"""Work on every core: tasks go out a few ahead, results come back in order, so nothing depends on who was faster."""

from __future__ import annotations

import multiprocessing
import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Executor, Future, ProcessPoolExecutor, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from itertools import chain, islice
from typing import Any, TypeVar

from skytrain.config import SkytrainError

Task = TypeVar("Task")
Result = TypeVar("Result")
AHEAD = 2  # tasks that wait beyond those being worked on: enough to keep every process busy, and a bound on memory


class WorkerLost(SkytrainError):
    """A process was killed under us; what was finished is safe."""


def worker_count(configured: int | None) -> int:
    return configured or len(os.sched_getaffinity(0))


def ordered(
    function: Callable[[Task], Result],
    tasks: Iterable[Task],
    workers: int,
    setup: Callable[..., None],
    given: tuple[Any, ...],
) -> Iterator[Result]:
    """`function` of each task in processes, in order. `setup(*given)` runs once in each, or here where one process is enough."""
    tasks = iter(tasks)
    first = list(islice(tasks, 2))
    if workers == 1 or len(first) < 2:
        setup(*given)
        yield from map(function, chain(first, tasks))
        return
    # Fresh processes: a fork would copy the locks of threads that are at work here (the store's, the tokenizer's).
    pool = ProcessPoolExecutor(workers, multiprocessing.get_context("spawn"), initializer=setup, initargs=given)
    try:
        yield from _in_order(pool, function, chain(first, tasks), workers + AHEAD)
    except BrokenProcessPool:
        raise WorkerLost(
            "a worker process was killed, most likely for lack of memory\n  start again with fewer: data.workers=N; it continues where it was"
        ) from None


def ordered_threads(function: Callable[[Task], Result], tasks: Iterable[Task], at_once: int) -> Iterator[Result]:
    """The same in threads, for work that is done outside of Python and lets other threads run; `at_once` bounds the memory."""
    yield from _in_order(ThreadPoolExecutor(at_once), function, tasks, at_once)


def _in_order(
    pool: Executor, function: Callable[[Task], Result], tasks: Iterable[Task], at_once: int
) -> Iterator[Result]:
    waiting: deque[Future[Result]] = deque()
    try:
        for task in tasks:
            waiting.append(pool.submit(function, task))
            if len(waiting) >= at_once:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    finally:
        pool.shutdown(wait=True, cancel_futures=True)
