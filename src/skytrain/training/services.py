"""What goes on beside training, on each rank: the meter, EC2's notices, and the thread that brings logs and metrics to the store."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..checkpoints import find_commit, read_manifest
from ..config import BudgetConfig, Config, SkytrainError, format_seconds
from ..jobs import Ranks
from ..runs import (
    CloudWatch,
    EventFiles,
    Instance,
    Lines,
    LoggedReporter,
    Metadata,
    Meter,
    MetricsWriter,
    Reporter,
    Spend,
    Superseded,
    Sync,
    attempt_key,
    check_newest,
    find_metadata,
    libraries_logged,
    log_record,
    machine_price,
    now,
    on_ec2,
    read_spend,
    this_machine,
)
from ..storage import Store
from .interruptions import NoticeWatch

SYNC_SECONDS = 5.0  # that one operation of the sync thread keeps trying: the thread itself comes round again
IDLE_SECONDS = 60.0  # between two attempts, above which it is told that they are paid for
GIVE_UP_SECONDS = 5.0  # that the last lines of an attempt which failed may take


@dataclass(frozen=True)
class Host:
    """This machine as AWS knows it; on other ranks than the first of each machine, nothing."""

    metadata: Metadata | None = None  # of an EC2 instance, also where it does not answer now
    instance: Instance | None = None
    on_ec2: bool = False


def find_host(ranks: Ranks, reporter: Reporter) -> Host:
    """Asked by one rank for all that are on this machine."""
    if ranks.local_rank != 0:
        return Host()
    metadata = find_metadata()
    if metadata is None:
        return Host(on_ec2=on_ec2())
    try:
        instance = metadata.instance()
    except OSError as error:
        reporter.note(
            f"warning: EC2's metadata service does not answer: {error}\n  it is asked again every few seconds"
        )
        return Host(metadata, on_ec2=True)
    return Host(metadata, instance, on_ec2=instance is not None or on_ec2())


def start_meter(config: Config, ranks: Ranks, host: Host, spent: Spend, reporter: Reporter) -> Meter:
    """Counts all of the job's machines at the price of rank 0's; all ranks call this together."""
    machines = [
        found
        for found in ranks.everyone(this_machine(host.instance) if ranks.local_rank == 0 else None)
        if found is not None
    ]
    price = ranks.first_does(lambda: _price(config.budget, host))
    if price is None and config.budget.usd is not None:
        reporter.note(
            f"warning: budget.usd={config.budget.usd:g} is not watched: what this machine costs is not known\n  say so with budget.usd_per_hour=..."
        )
    meter = Meter(machines, price, spent)
    if price is not None and meter.idle_seconds > IDLE_SECONDS:
        reporter.note(
            f"the {format_seconds(meter.idle_seconds)} since the run was stopped are counted: this EC2 instance was rented all the while"
        )
    return meter


def _price(budget: BudgetConfig, host: Host) -> float | None:
    price = machine_price(budget, host.instance)
    if price is None and budget.usd is not None and host.on_ec2:
        raise SkytrainError(
            f"budget.usd: {budget.usd:g} cannot be kept: this EC2 instance's metadata service did not say what it is, so its price is not known\n"
            "  set budget.usd_per_hour to the price of one machine, or let this process reach http://169.254.169.254 (IMDSv2)"
        )
    return price


def spent_before(store: Store, run: str, own_checkpoint: str | None) -> Spend:
    """What the run has cost before this attempt. Its newest checkpoint has its own record, by which no stream is missed."""
    saved: Mapping[str, Any] = {}
    if own_checkpoint is not None:
        _, manifest = read_manifest(store, find_commit(store, own_checkpoint))
        saved = manifest.state.get("rest", {}).get("spend") or {}
    return read_spend(store, run, saved)


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
    store, key = store.hurried(SYNC_SECONDS), attempt_key(run, attempt)
    sync = Sync(reporter.note)
    log = Lines(store, f"{key}/logs/{ranks.rank}-")
    cloudwatch = CloudWatch(run, attempt, ranks.rank) if "cloudwatch" in config.trainer.loggers else None
    metrics, takeover = MetricsWriter(store, run, attempt), Takeover(store, run, attempt)
    spend = Lines(store, f"{key}/spend/") if ranks.first else None
    # What a resumed run cannot make again must be in the store before a checkpoint counts.
    sync.add(metrics.lines, essential=True)
    if spend is not None:
        sync.add(spend, essential=True)
    sync.add(log)
    if cloudwatch is not None:
        sync.add(cloudwatch)
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
        notices = stack.enter_context(NoticeWatch(metadata, reporter.note)) if metadata else None
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
