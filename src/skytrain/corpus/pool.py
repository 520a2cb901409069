"""Parallel work on all cores with results in task order, so that nothing depends on timing."""

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
from multiprocessing.context import ForkServerContext, ForkServerProcess
from typing import Any, TypeVar

from ..config import SkytrainError, child_environment, hidden_main, set_variables

Task = TypeVar("Task")
Result = TypeVar("Result")
AHEAD = 2  # queued tasks beyond the running ones: enough to keep every process busy, with bounded memory
LOST = (
    "a worker process was killed, most likely for lack of memory\n"
    "  start again with fewer: data.workers=N; finished work is kept"
)
# Modules that every worker needs, imported once in the fork server.
PRELOAD = ["skytrain.corpus.warm"]


class WorkerLost(SkytrainError):
    """A worker process was killed. Finished chunks are already stored."""


def worker_count(configured: int | None) -> int:
    return configured or len(os.sched_getaffinity(0))


def ordered(
    function: Callable[[Task], Result],
    tasks: Iterable[Task],
    workers: int,
    setup: Callable[..., None],
    given: tuple[Any, ...],
) -> Iterator[Result]:
    """Yield `function(task)` for each task, in order, computed in worker processes.

    `setup(*given)` runs once in each worker. With one worker or one task, everything runs in this process.
    """
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
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def ordered_streams(
    function: Callable[[Task], Iterator[Result]],
    tasks: Iterable[Task],
    workers: int,
    setup: Callable[..., None],
    given: tuple[Any, ...],
    arrived: Callable[[Result], None],
) -> Iterator[Result]:
    """Yield everything that `function(task)` yields, in task order; each worker process handles one task at a time.

    Results of later tasks are buffered here, so they should be small. `arrived` is called with each result as soon
    as it is received, in any order.
    """
    context = _context()
    processes = []
    idle = []
    for _ in range(workers):
        ours, theirs = context.Pipe()
        process = context.Process(target=_serve, args=(theirs, function, *_for_start(setup, given)), daemon=True)
        process.start()
        theirs.close()  # so that our end sees EOF when the worker ends
        processes.append(process)
        idle.append(ours)
    try:
        yield from _stream_in_order(enumerate(tasks), idle, arrived)
    finally:
        for process in processes:
            process.kill()  # workers may have inherited an ignored SIGTERM; unfinished work is redone
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
            if isinstance(result, SkytrainError):  # raised in task order: the caller may stop before reaching it
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
                waiting[busy.pop(pipe)].append(rebuild_error(*content))
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
    except (EOFError, BrokenPipeError):  # the parent has closed the pipe
        return


def rebuild_error(kind: type[SkytrainError], args: tuple[Any, ...], state: dict[str, Any]) -> SkytrainError:
    """Rebuild an error from its state. Unpickling would call its constructor with the formatted message."""
    error = kind.__new__(kind)
    error.args = args
    error.__dict__.update(state)
    return error


class WorkerProcess(ForkServerProcess):
    """A worker, which does not run the script of the process that starts it."""

    @staticmethod
    def _Popen(process_obj: Any) -> Any:  # noqa: N802 - by which multiprocessing starts a process
        with hidden_main():
            return ForkServerProcess._Popen(process_obj)


class WorkerContext(ForkServerContext):
    """The context of workers, for pools and single processes."""

    Process = WorkerProcess


def _context() -> ForkServerContext:
    """Return a fork server context, whose server has preloaded the modules that workers need.

    Forking this process would copy locks held by its threads (the store's, the tokenizer's), and each spawned
    process would take a second or two to import.
    """
    context = WorkerContext()
    context.set_forkserver_preload(PRELOAD)
    return context


def _for_start(setup: Callable[..., None], given: tuple[Any, ...]) -> tuple[dict[str, str], bytes]:
    """Return the arguments of `_start`, with the current environment, which a store may read when unpickled."""
    return child_environment(), pickle.dumps((setup, given))


def _start(environment: dict[str, str], pickled: bytes) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches every process; the parent stops the workers
    threading.Thread(target=_end_with_parent, daemon=True).start()
    set_variables(environment)
    setup, given = pickle.loads(pickled)  # noqa: S301 - from the process that started this one
    setup(*given)


def _end_with_parent() -> None:
    """Exit when the parent dies: a killed parent cannot stop its workers, which would wait forever."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)


def ordered_threads(function: Callable[[Task], Result], tasks: Iterable[Task], at_once: int) -> Iterator[Result]:
    """Yield results as `ordered` does, but from threads, for work that releases the GIL; `at_once` bounds memory.

    If an error or a signal ends the loop early, the tasks already taken are still done: they may be writes of finished work.
    """
    with ThreadPoolExecutor(at_once) as pool:
        yield from _in_order(pool, function, tasks, at_once)


def _in_order(
    pool: Executor, function: Callable[[Task], Result], tasks: Iterable[Task], at_once: int
) -> Iterator[Result]:
    waiting: deque[Future[Result]] = deque()
    for task in tasks:
        waiting.append(pool.submit(function, task))
        if len(waiting) >= at_once:
            yield waiting.popleft().result()
    while waiting:
        yield waiting.popleft().result()
