"""Services of an attempt on each rank: EC2's notices, and the sync of logs and metrics to the store."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..aws import CloudWatch, Ec2Instance, Metadata, find_metadata, log_destination, on_ec2
from ..config import without_secrets
from ..jobs import JoinedGeneration, Ranks
from ..runs import (
    EventFiles,
    HostSpends,
    Lines,
    LoggedReporter,
    Meter,
    MetricsPage,
    MetricsWriter,
    Reporter,
    StopRequest,
    Superseded,
    Sync,
    attempt_key,
    check_newest,
    cloudwatch_stream,
    events_key,
    libraries_logged,
    log_record,
    metrics_served,
    now,
    stop_asked,
)
from ..storage import Store
from .context import RunContext
from .interruptions import NoticeWatch

SYNC_SECONDS = 5.0  # how long one operation of the sync thread is retried; the thread tries again in its next round
WAITING_SECONDS = 30.0  # time between two readings of what waiting hosts have cost
GIVE_UP_SECONDS = 5.0  # time allowed for the last lines of an attempt that failed


@dataclass(frozen=True)
class Host:
    """This machine as AWS describes it; empty on ranks other than local rank 0."""

    metadata: Metadata | None = None  # the service of an EC2 instance, even if it does not answer now
    instance: Ec2Instance | None = None
    on_ec2: bool = False


def find_host(ranks: Ranks, reporter: Reporter) -> Host:
    """Return this machine as AWS describes it. Only local rank 0 asks; other ranks get an empty `Host`."""
    if ranks.local_rank != 0:
        return Host()
    metadata = find_metadata()
    if metadata is None:
        return Host(on_ec2=on_ec2())
    try:
        instance = metadata.instance()
    except OSError as error:
        reporter.note(
            f"warning: EC2's metadata service does not answer: {error}\n  it is queried again every few seconds"
        )
        return Host(metadata, on_ec2=True)
    return Host(metadata, instance, on_ec2=instance is not None or on_ec2())


class TakeoverWatch:
    """A watch for a newer attempt at the run; `found` says which has started."""

    def __init__(self, store: Store, run: str, attempt: int) -> None:
        self._store = store
        self._run = run
        self._attempt = attempt
        self.found: Superseded | None = None

    def check(self) -> None:
        try:
            check_newest(self._store, self._run, self._attempt)
        except Superseded as error:
            self.found = error


class StopWatch:
    """A watch for `skytrain stop`; `found` is the request."""

    def __init__(self, store: Store, run: str, attempt: int) -> None:
        self._store = store
        self._run = run
        self._attempt = attempt
        self.found: StopRequest | None = None

    def check(self) -> None:
        if self.found is None:
            self.found = stop_asked(self._store, self._run, self._attempt)


class WaitingHosts:
    """A watch that adds the cost of hosts that wait to the meter of those that train."""

    def __init__(self, spends: HostSpends, meter: Meter) -> None:
        self._spends = spends
        self._meter = meter
        self._due = 0.0

    def check(self) -> None:
        if time.monotonic() >= self._due:
            self._due = time.monotonic() + WAITING_SECONDS
            self._meter.note_others(self._spends.read())


@dataclass(frozen=True)
class RunServices:
    """The services that a rank's callbacks use during an attempt."""

    reporter: Reporter
    metrics: MetricsWriter
    page: MetricsPage | None  # for Prometheus, on rank 0
    cloudwatch: CloudWatch | None
    notices: NoticeWatch | None
    takeover: TakeoverWatch
    stop: StopWatch
    tensorboard: Path
    sync: Sync
    spend: Lines | None  # on rank 0
    meter: Meter

    def start_heartbeat(self, facts: Callable[[], dict[str, Any]]) -> None:
        """Write `facts` to the attempt's spend stream every few seconds: its step and what it has cost."""
        if self.spend is not None:
            spend = self.spend
            self.sync.each_time(lambda: spend.write({"at": now(), **facts()}))


@contextmanager
def run_services(context: RunContext, attempt: int, host: Host, meter: Meter) -> Iterator[RunServices]:
    """Run the services of an attempt. At its end the last lines are synced to the store, with an error's traceback."""
    config = context.config
    run = context.run
    ranks = context.ranks
    reporter = context.reporter
    store = context.store.hurried(SYNC_SECONDS)
    key = attempt_key(run, attempt)
    sync = Sync(reporter.note)
    log = Lines(store, f"{key}/logs/{ranks.rank}-")
    # Only local rank 0 of each machine asks the metadata service, and all machines of a job are alike.
    on_ec2 = config.cloud.cloudwatch and ranks.first_does(lambda: host.on_ec2)
    destination = log_destination(config, run, on_ec2=on_ec2)
    stream = f"attempt-{attempt}/rank-{ranks.rank}"
    metrics = MetricsWriter(store, run, attempt)
    takeover = TakeoverWatch(store, run, attempt)
    stop = StopWatch(store, run, attempt)
    spend = Lines(store, f"{key}/spend/") if ranks.first else None
    # What a resumed run cannot produce again must be in the store before a checkpoint is committed.
    sync.add(metrics.lines, essential=True)
    if spend is not None:
        sync.add(spend, essential=True)
    sync.add(log)
    if ranks.first:
        sync.each_time(takeover.check)
        sync.each_time(stop.check)
        if (joined := JoinedGeneration.from_environment()) is not None:
            sync.each_time(WaitingHosts(HostSpends(store, run, joined.members), meter).check)

    with ExitStack() as stack:
        cloudwatch = stack.enter_context(cloudwatch_stream(destination, run, stream, reporter.note))

        def write(text: str) -> None:
            log.write(log_record(text))
            if cloudwatch is not None:
                cloudwatch.log(without_secrets(text))

        tensorboard = stack.enter_context(_tensorboard_folder(store, run, sync))
        seconds = GIVE_UP_SECONDS
        stack.callback(lambda: sync.close(seconds))
        stack.enter_context(libraries_logged(write))
        notices = stack.enter_context(NoticeWatch(host.metadata, reporter.note)) if host.metadata else None
        sync.start()
        logged = LoggedReporter(reporter, write)
        page = stack.enter_context(_served_page(context, attempt, meter))
        yield RunServices(
            reporter=logged,
            metrics=metrics,
            page=page,
            cloudwatch=cloudwatch,
            notices=notices,
            takeover=takeover,
            stop=stop,
            tensorboard=tensorboard,
            sync=sync,
            spend=spend,
            meter=meter,
        )
        seconds = config.trainer.stop_within


@contextmanager
def _served_page(context: RunContext, attempt: int, meter: Meter) -> Iterator[MetricsPage | None]:
    """Serve and yield the page that Prometheus reads; None on ranks other than 0, and where no port is set."""
    settings = context.config.metrics
    reporter = context.reporter
    if not context.ranks.first or settings.prometheus_port is None:
        yield None
        return
    page = MetricsPage(context.run, attempt, lambda: meter.usd() if meter.usd_per_hour is not None else None)
    page.expect(context.plan.stop_step, context.config.budget.usd)
    with metrics_served(settings, page, reporter.note) as url:
        if url is not None:
            reporter.note(f"metrics for Prometheus: {url}")
        yield page


@contextmanager
def _tensorboard_folder(store: Store, run: str, sync: Sync) -> Iterator[Path]:
    """Yield a local folder for event files, which are appended to.

    On file:// it is the run's own folder; elsewhere it is a temporary one, which is synced.
    """
    key = events_key(run)
    local = store.local_path(key)
    if local is not None:
        yield local
        return
    with tempfile.TemporaryDirectory(prefix="skytrain-tensorboard-") as scratch:
        sync.add(EventFiles(store, Path(scratch), key))
        yield Path(scratch)
