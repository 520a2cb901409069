"""Opens a Spark session with the settings that the engine needs."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ...config import ConfigError, MissingExtra, SkytrainError, SparkConfig, is_spark_submitted, set_default
from ...storage import ScratchFolder
from ..progress import ShowProgress
from .jobs import SparkJobs

JAVA_HINT = "install Java 17 or newer, and set JAVA_HOME if it is not on the PATH"
DEFAULTS = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",  # Skytrain shows its own
}
RUNTIME = {
    # An adaptive plan would run every shuffle as a separate job, and has nothing to decide here.
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.execution.arrow.maxRecordsPerBatch": "10000",
}


@contextmanager
def open_jobs(settings: SparkConfig, progress: ShowProgress | None = None) -> Iterator[SparkJobs]:
    """Run jobs on the session of this process, or on a new one that ends with them."""
    interrupt = signal.getsignal(signal.SIGINT)
    with ScratchFolder("skytrain-spark") as scratch:
        session, is_new = _open_session(settings, scratch)
        try:
            yield SparkJobs(
                session=session, progress=progress, partitions=settings.partitions, split_bytes=settings.split_bytes
            )
        finally:
            if is_new:
                session.stop()
                # Spark's own handler would cancel the jobs of a session that is no longer there.
                if interrupt is not None and threading.current_thread() is threading.main_thread():
                    signal.signal(signal.SIGINT, interrupt)


def _open_session(settings: SparkConfig, scratch: Path) -> tuple[Any, bool]:
    """Return a session and whether it is new. Settings of spark-submit or a notebook are kept."""
    try:
        from pyspark import SparkConf, SparkContext
        from pyspark.errors import PySparkException
        from pyspark.sql import SparkSession
    except ImportError:
        raise MissingExtra("pyspark", "spark") from None
    set_default("PYSPARK_PYTHON", sys.executable)  # executors on this machine; elsewhere their own setting wins
    active = SparkSession.getActiveSession()
    if active is not None:
        for name, value in RUNTIME.items():
            active.conf.set(name, value)
        return active, False
    if is_spark_submitted():
        SparkContext._ensure_initialized()  # or SparkConf does not see what spark-submit set, above all the master
    given = SparkConf()
    builder = SparkSession.builder.appName("skytrain prepare")
    defaults = {**DEFAULTS, **RUNTIME}
    master = settings.master or given.get("spark.master", "local[*]")
    if settings.master is not None or not given.contains("spark.master"):
        builder = builder.master(master)
    if str(master).startswith("local"):
        # A killed driver leaves its shuffled data behind; the next one removes this folder. A cluster's workers clean
        # up after themselves.
        defaults["spark.local.dir"] = str(scratch)
    for name in settings.conf:
        if not name.startswith("spark."):
            raise ConfigError(
                "spark.conf", f"{name!r} is not a property of Spark", hint="for example {spark.executor.memory: 2g}"
            )
    for name, value in {**defaults, **settings.conf}.items():
        if name in settings.conf or not given.contains(name):
            builder = builder.config(name, value)
    try:
        session = builder.getOrCreate()
    except (PySparkException, OSError) as error:
        raise SkytrainError(f"Spark did not start: {_first_line(error)}\n  {JAVA_HINT}") from None
    session.sparkContext.setLogLevel("ERROR")
    return session, True


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0]
