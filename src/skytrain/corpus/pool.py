"""Work on every core: tasks go out a few ahead, results come back in order, so nothing depends on who was faster."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import signal
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Executor, Future, ProcessPoolExecutor, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from itertools import chain, islice
from multiprocessing.connection import Connection, wait
from multiprocessing.context import ForkServerContext
from typing import Any, TypeVar

from skytrain.config import SkytrainError, child_environment, set_variables

Task = TypeVar("Task")
Result = TypeVar("Result")
AHEAD = 2  # tasks that wait beyond those being worked on: enough to keep every process busy, and a bound on memory
LOST = (
    "a worker process was killed, most likely for lack of memory\n"
    "  start again with fewer: data.workers=N; it continues where it was"
)
# What a process needs before its first task; loaded once, in the process that all workers are copies of.
PRELOAD = ["skytrain.corpus.warm"]


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
    pool = ProcessPoolExecutor(workers, _context(), initializer=_start, initargs=_for_start(setup, given))
    try:
        yield from _in_order(pool, function, chain(first, tasks), workers + AHEAD)
    except BrokenProcessPool:
        raise WorkerLost(LOST) from None


def ordered_streams(
    function: Callable[[Task], Iterator[Result]],
    tasks: Iterable[Task],
    workers: int,
    setup: Callable[..., None],
    given: tuple[Any, ...],
    arrived: Callable[[Result], None],
) -> Iterator[Result]:
    """All that `function` yields for each task, task by task in order; each process works on its own task.

    Results of later tasks wait here meanwhile, so they should be small; `arrived` has each as soon as it is there.
    """
    context = _context()
    processes, idle = [], []
    for _ in range(workers):
        ours, theirs = context.Pipe()
        process = context.Process(target=_serve, args=(theirs, function, *_for_start(setup, given)), daemon=True)
        process.start()
        theirs.close()  # so that the pipe reports when it ends
        processes.append(process)
        idle.append(ours)
    try:
        yield from _stream_in_order(enumerate(tasks), idle, arrived)
    finally:
        for process in processes:
            process.kill()  # SIGTERM may be ignored here, and so in them; what they have not finished is made again
        for process in processes:
            process.join()


def _stream_in_order(
    tasks: Iterator[tuple[int, Any]], idle: list[Connection], arrived: Callable[[Any], None]
) -> Iterator[Any]:
    busy: dict[Connection, int] = {}
    waiting: dict[int, deque[Any]] = {}
    finished: set[int] = set()
    current = 0
    while True:
        while idle and (task := next(tasks, None)) is not None:
            idle[-1].send(task[1])
            busy[idle.pop()] = task[0]
            waiting[task[0]] = deque()
        if current not in waiting:
            return
        while waiting[current]:
            result = waiting[current].popleft()
            if isinstance(result, SkytrainError):  # only now: the caller may have had enough before it
                raise result
            yield result
        if current in finished:
            finished.remove(current)
            del waiting[current]
            current += 1
            continue
        for pipe in wait(list(busy)):
            assert isinstance(pipe, Connection)
            try:
                kind, content = pipe.recv()
            except EOFError:
                raise WorkerLost(LOST) from None
            if kind == "result":
                arrived(content)
                waiting[busy[pipe]].append(content)
            elif kind == "error":
                waiting[busy.pop(pipe)].append(_rebuild(*content))
            else:
                finished.add(busy.pop(pipe))
                idle.append(pipe)


def _serve(
    pipe: Connection, function: Callable[[Any], Iterator[Any]], environment: dict[str, str], pickled: bytes
) -> None:
    try:
        _start(environment, pickled)
        while True:
            for result in function(pipe.recv()):
                pipe.send(("result", result))
            pipe.send(("end", None))
    except SkytrainError as error:
        pipe.send(("error", (type(error), error.args, error.__dict__)))
    except (EOFError, BrokenPipeError):  # the parent no longer waits for this result
        return


def _rebuild(kind: type[SkytrainError], args: tuple[Any, ...], state: dict[str, Any]) -> SkytrainError:
    """An error as it was raised; pickle would call its class with the finished message."""
    error = kind.__new__(kind)
    error.args = args
    error.__dict__.update(state)
    return error


def _context() -> ForkServerContext:
    """Copies of a process that has loaded what they need, and nothing else: a fork of this one would copy the locks of
    threads that are at work here (the store's, the tokenizer's), and fresh ones would each load for a second or two."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(PRELOAD)
    return context


def _for_start(setup: Callable[..., None], given: tuple[Any, ...]) -> tuple[dict[str, str], bytes]:
    """What `_start` needs: the environment as it is now, which a store may read when it is unpickled."""
    return child_environment(), pickle.dumps((setup, given))


def _start(environment: dict[str, str], pickled: bytes) -> None:
    signal.signal(
        signal.SIGINT, signal.SIG_IGN
    )  # the terminal tells every process; the one that gives the work stops it
    threading.Thread(target=_end_with_parent, daemon=True).start()
    set_variables(environment)
    setup, given = pickle.loads(pickled)
    setup(*given)


def _end_with_parent() -> None:
    """A killed parent cannot stop its workers, and they would wait for work for ever."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)


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
