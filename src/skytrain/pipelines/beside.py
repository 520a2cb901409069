"""What goes on beside training, on each rank: the meter, EC2's notices, and the thread that brings logs and metrics to the store."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..config import Config
from ..parallel import Ranks
from ..runs import Meter, MetricsWriter, Reporter, Superseded, attempt_key, check_newest
from ..runs.attempts import now
from ..runs.cloudwatch import CloudWatch
from ..runs.imds import Instance, Metadata, find_metadata
from ..runs.logs import LoggedReporter, libraries_logged, log_record
from ..runs.meter import machine_price, read_counts, this_machine
from ..runs.sync import EventFiles, Lines, Sync
from ..storage import Store
from ..training.interruptions import NoticeWatch

SYNC_SECONDS = 5.0  # that one operation of the sync thread keeps trying: the thread itself comes round again
GIVE_UP_SECONDS = 5.0  # that the last lines of an attempt which failed may take


def find_instance(ranks: Ranks) -> tuple[Metadata | None, Instance | None]:
    """Of this machine, asked by one rank for all that are on it."""
    metadata = find_metadata() if ranks.local_rank == 0 else None
    return metadata, metadata.instance() if metadata else None


def start_meter(
    config: Config, store: Store, run: str, ranks: Ranks, instance: Instance | None, reporter: Reporter
) -> Meter:
    """Counts all of the job's machines. Only the first rank's is asked for dollars; all ranks call this together."""
    machines = [
        found
        for found in ranks.everyone(this_machine(instance) if ranks.local_rank == 0 else None)
        if found is not None
    ]
    price = ranks.first_does(lambda: machine_price(config.budget, instance))
    before = read_counts(store, run) if ranks.first else {}
    if price is None and config.budget.usd is not None:
        reporter.note(
            f"warning: budget.usd={config.budget.usd:g} is not watched: what this machine costs is not known\n  say so with budget.usd_per_hour=..."
        )
    return Meter(machines, price, before)


class Takeover:
    """Looks whether another attempt at the run has begun; `found` says which."""

    def __init__(self, store: Store, run: str, attempt: int) -> None:
        self._store, self._run, self._attempt = store, run, attempt
        self.found: Superseded | None = None

    def look(self) -> None:
        try:
            check_newest(self._store, self._run, self._attempt)
        except Superseded as error:
            self.found = error


@dataclass(frozen=True)
class Beside:
    """What the callbacks of a rank are given."""

    reporter: Reporter
    metrics: MetricsWriter
    cloudwatch: CloudWatch | None
    notices: NoticeWatch | None
    takeover: Takeover
    tensorboard: Path
    sync: Sync
    spend: Lines | None

    def beat(self, facts: Callable[[], dict[str, Any]]) -> None:
        """A line of the attempt's spend every few seconds: that it lives, where it is, and what it has cost."""
        if self.spend is not None:
            spend = self.spend
            self.sync.each_time(lambda: spend.write({"at": now(), **facts()}))


@contextmanager
def beside(
    config: Config, store: Store, run: str, attempt: int, ranks: Ranks, metadata: Metadata | None, reporter: Reporter
) -> Iterator[Beside]:
    """For the time of an attempt. At its end the last lines are brought to the store, and with an error its trace too."""
    store, key = store.patient(min(SYNC_SECONDS, store.patience_seconds)), attempt_key(run, attempt)
    sync = Sync(reporter.note)
    log = Lines(store, f"{key}/logs/{ranks.rank}-")
    cloudwatch = CloudWatch(run, attempt, ranks.rank) if "cloudwatch" in config.trainer.loggers else None
    metrics, takeover = MetricsWriter(store, run, attempt), Takeover(store, run, attempt)
    spend = Lines(store, f"{key}/spend/") if ranks.first else None
    for stream in (log, metrics.lines, cloudwatch, spend):
        if stream is not None:
            sync.add(stream)
    if ranks.first:
        sync.each_time(takeover.look)

    def write(text: str) -> None:
        log.write(log_record(text))
        if cloudwatch is not None:
            cloudwatch.log(text)

    with ExitStack() as stack:
        tensorboard = stack.enter_context(_tensorboard_folder(store, run, sync))
        seconds = GIVE_UP_SECONDS
        stack.callback(lambda: sync.close(seconds))
        stack.enter_context(libraries_logged(write))
        notices = stack.enter_context(NoticeWatch(metadata)) if metadata else None
        sync.start()
        yield Beside(LoggedReporter(reporter, write), metrics, cloudwatch, notices, takeover, tensorboard, sync, spend)
        seconds = config.trainer.stop_within


@contextmanager
def _tensorboard_folder(store: Store, run: str, sync: Sync) -> Iterator[Path]:
    """A local folder for event files, which are appended to: the run's own on file://, elsewhere one whose news is sent."""
    key = f"runs/{run}/tensorboard"
    local = store.local_path(key)
    if local is not None:
        yield local
        return
    with tempfile.TemporaryDirectory(prefix="skytrain-tensorboard-") as scratch:
        sync.add(EventFiles(store, Path(scratch), key))
        yield Path(scratch)
