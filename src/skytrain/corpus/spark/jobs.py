"""Runs jobs on Spark: tasks by number, tables by block, progress by stage. A finished stage is never run again."""

from __future__ import annotations

import json
import pickle
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

from ...config import SkytrainError, format_bytes, plural
from ...storage import AGAIN, MANIFEST_BYTES, NotFound, Store, parse_json, read_whole
from ..pool import rebuild_error
from ..progress import ShowProgress
from .tables import FILES, RecordTable, write_by_block

DOCUMENTS_PER_PARTITION = 200_000  # 18 band hashes of 32 bytes each: sorted in about 115 MB
POLL_SECONDS = 0.5
BATCH_ROWS = "spark.sql.execution.arrow.maxRecordsPerBatch"
RESULT = "task long, result binary"

TaskFunction = Callable[[Any, int], Iterable[Any]]


@dataclass
class StageFacts:
    """The cost of a stage."""

    seconds: float = 0.0
    shuffle_bytes: int = 0
    tasks: int = 0


@dataclass
class SparkJobs:
    """A session, and what its jobs have cost so far."""

    session: Any
    progress: ShowProgress | None = None
    partitions: int | None = None
    split_bytes: int | None = None
    facts: dict[str, StageFacts] = field(default_factory=dict)
    shuffle_partitions: int = 2  # for later jobs

    @property
    def cores(self) -> int:
        return int(self.session.sparkContext.defaultParallelism)

    def partitions_for(self, documents: int) -> int:
        return self.partitions or max(2 * self.cores, -(-documents // DOCUMENTS_PER_PARTITION))

    def share(self, value: Any) -> Any:
        """Send a value to every executor once; tasks use its `.value`."""
        return self.session.sparkContext.broadcast(value)

    def tasks(self, function: TaskFunction, shared: Any, count: int, schema: str) -> Any:
        """Return a frame of what `function(shared value, number)` yields for each number below `count`.

        Each number is a partition.
        """
        frame = self.session.range(0, count, 1, max(1, count))
        return frame.mapInArrow(partial(_numbered, function, shared), schema)

    def results(self, stage: str, function: Callable[[Any, int], Any], shared: Any, count: int) -> list[Any]:
        """Return `function(shared value, number)` for each number, in order. Results must be small.

        A SkytrainError is a result too: the reader of the results raises it on reaching it (see `raised`).
        """
        if not count:
            return []
        rows = self.run(stage, self.tasks(partial(_one_result, function), shared, count, RESULT))
        by_task = {row["task"]: pickle.loads(bytes(row["result"])) for row in rows}  # noqa: S301 - written by Skytrain's tasks
        return [by_task[number] for number in range(count)]

    def table(self, stage: str, name: str, frame: Any) -> RecordTable:
        """Run a job whose tasks write a table, and return it."""
        rows = self.run(stage, frame)
        files = sorted((row["block"], row["piece"], row["rows"]) for row in rows if row["piece"] >= 0)
        return RecordTable(name, tuple(files), sum(row["number"] for row in rows) % 2**64)

    def table_by_block(
        self, stage: str, name: str, dtype: np.dtype, frame: Any, place: Any, unique: bool = False
    ) -> RecordTable:
        """Sort a frame with a column `block` and write it, with `unique` without repeated records."""
        assert dtype.names is not None
        moved = self.sorted_by(frame, "block", "block", *dtype.names)
        write = partial(write_by_block, place, name, dtype, unique)
        return self.table(stage, name, moved.mapInArrow(write, FILES))

    def sorted_by(self, frame: Any, key: str, *columns: str, partitions: int | None = None) -> Any:
        """Move records with equal keys to the same partition, sorted by the columns."""
        count = partitions or self.shuffle_partitions
        return frame.repartition(count, key).sortWithinPartitions(*columns)

    @contextmanager
    def batch_rows(self, rows: int) -> Iterator[None]:
        """Limit the rows per batch of the jobs that run in this context."""
        conf = self.session.conf
        before = conf.get(BATCH_ROWS)
        conf.set(BATCH_ROWS, str(rows))
        try:
            yield
        finally:
            conf.set(BATCH_ROWS, before)

    def run(self, stage: str, frame: Any) -> list[Any]:
        """Run a job and return its rows, which must be few: what its tasks report about the files they wrote."""
        context = self.session.sparkContext
        group = f"{stage}-{time.monotonic_ns()}"
        context.setJobGroup(group, stage)
        watcher = _Watcher(context, group, stage, self.progress)
        begun = time.monotonic()
        watcher.start()
        try:
            rows = frame.collect()
        except Exception as error:
            raise _explained(stage, error) from error
        finally:
            watcher.stop()
        facts = self.facts.setdefault(stage, StageFacts())
        facts.seconds += time.monotonic() - begun
        shuffled, tasks = _measured(context, group)
        facts.shuffle_bytes += shuffled
        facts.tasks += tasks
        if self.progress:
            detail = f"{plural(tasks, 'task')}, {format_bytes(shuffled)} shuffled"
            self.progress(stage, tasks, tasks, detail)
        return list(rows)


class FinishedStages:
    """The results of finished stages, kept in a folder of the store so that work resumes after the last of them."""

    def __init__(self, store: Store, folder: str) -> None:
        self.store = store
        self.folder = folder

    def get(self, stage: str, make: Callable[[], Any]) -> Any:
        """Return the stored result of the stage, or store that of `make`, which must be JSON."""
        key = f"{self.folder}/{stage}.json"
        try:
            return parse_json(read_whole(self.store, key, MANIFEST_BYTES, AGAIN))
        except NotFound:
            made = make()
        self.store.write(key, json.dumps(made).encode())
        return json.loads(json.dumps(made))

    def table(self, stage: str, make: Callable[[], RecordTable]) -> RecordTable:
        return RecordTable.from_json(self.get(stage, lambda: make().to_json()))


def _numbered(function: TaskFunction, shared: Any, batches: Iterable[Any]) -> Iterator[Any]:
    for each in batches:
        for number in each.column(0).to_pylist():
            yield from function(shared.value, number)


def _one_result(function: Callable[[Any, int], Any], shared: Any, number: int) -> Iterator[Any]:
    import pyarrow as pa

    try:
        result = function(shared, number)
    except SkytrainError as error:
        result = FailedTask.of(error)
    arrays = [pa.array([number], pa.int64()), pa.array([pickle.dumps(result)], pa.binary())]
    yield pa.RecordBatch.from_arrays(arrays, ["task", "result"])


@dataclass(frozen=True)
class FailedTask:
    """A SkytrainError that a task raised."""

    kind: type[SkytrainError]
    args: tuple[Any, ...]
    state: dict[str, Any]

    @classmethod
    def of(cls, error: SkytrainError) -> FailedTask:
        return cls(type(error), error.args, error.__dict__)

    def error(self) -> SkytrainError:
        return rebuild_error(self.kind, self.args, self.state)


def raised(results: Iterable[Any]) -> Iterator[Any]:
    """Yield the results, and raise the first error among them on reaching it."""
    for result in results:
        if isinstance(result, FailedTask):
            raise result.error()
        yield result


class SparkFailure(SkytrainError):
    """A job failed on Spark. Finished stages are already stored."""


def _explained(stage: str, error: Exception) -> SparkFailure:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    errors = [line for line in lines if "Error" in line or "Exception" in line]
    last = next((line for line in reversed(errors) if not line.startswith(("at ", "File "))), lines[0] if lines else "")
    hint = "run it again to resume after the last finished stage; --debug prints the whole error"
    if "ModuleNotFoundError" in last:
        hint = "executors need Python 3.11 with skytrain[spark]: set PYSPARK_PYTHON to it before Spark starts"
    return SparkFailure(f"Spark could not finish {stage}: {last}\n  {hint}")


def _measured(context: Any, group: str) -> tuple[int, int]:
    """Return the bytes that a job group's stages wrote for shuffles, and their number of tasks."""
    from py4j.protocol import Py4JJavaError

    status = context._jsc.sc().statusStore()
    shuffled = 0
    tasks = 0
    tracker = context.statusTracker()
    for job in tracker.getJobIdsForGroup(group):
        info = tracker.getJobInfo(job)
        for stage in info.stageIds if info else ():
            try:
                data = status.lastStageAttempt(stage)
            except Py4JJavaError:  # a stage that was skipped
                continue
            shuffled += data.shuffleWriteBytes()
            tasks += data.numCompleteTasks()
    return shuffled, tasks


class _Watcher(threading.Thread):
    """Reports how many tasks of a job group are finished while the job runs."""

    def __init__(self, context: Any, group: str, stage: str, progress: ShowProgress | None) -> None:
        super().__init__(name="spark-progress", daemon=True)
        self._tracker = context.statusTracker()
        self._group = group
        self._stage = stage
        self._progress = progress
        self._stopped = threading.Event()

    def run(self) -> None:
        while self._progress and not self._stopped.wait(POLL_SECONDS):
            done = total = 0
            for job in self._tracker.getJobIdsForGroup(self._group):
                info = self._tracker.getJobInfo(job)
                for stage in info.stageIds if info else ():
                    facts = self._tracker.getStageInfo(stage)
                    if facts:
                        done, total = done + facts.numCompletedTasks, total + facts.numTasks
            if 0 < done < total and not self._stopped.is_set():
                self._progress(self._stage, done, total)

    def stop(self) -> None:
        self._stopped.set()
        self.join()
