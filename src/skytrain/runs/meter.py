"""The meter: the cost of a run so far, over all attempts and machines, from records in the store.

Each machine has its own count, and an attempt continues the count that it finds. So the time between a kill and the
next start on the same machine is counted, a restart resets nothing, and two attempts on one machine count it once.
An EC2 instance is counted from its launch, including the time while the run was stopped: it is billed all the time.
Any other machine is counted from the run's first start, and not while the run was stopped.

Clocks: seconds since boot, which cannot be set, and the metadata service's clock for the age of an instance.
The machine's wall clock is never used: before it is synchronized it may be days off.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ..aws import Ec2Instance
from ..config import BudgetConfig, SkytrainError
from ..planning import Spending, load_catalog
from ..storage import Store
from .attempts import attempt_key, attempt_numbers, read_outcome
from .heartbeats import HostSpends
from .reading import read_lines

BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


@dataclass(frozen=True)
class MeteredMachine:
    """The state of one machine when an attempt starts on it."""

    key: str  # constant for the lifetime of the machine
    boot: str
    boot_seconds: float  # since it booted
    age_seconds: float  # since launch, for EC2; 0 elsewhere, where cost starts with the run
    rented: bool = True  # billed by the hour even while the run is stopped: an EC2 instance


@dataclass(frozen=True)
class Count:
    """The cost of one machine for a run, with times by the machine's own clock."""

    usd: float
    seconds: float
    boot: str
    boot_seconds: float


@dataclass(frozen=True)
class Spend:
    """The cost of a run before an attempt."""

    counts: Mapping[str, Count]
    save_seconds: float = 0.0  # duration of its slowest save
    stopped: bool = False  # whether the previous attempt ended in an orderly way


NOTHING_SPENT = Spend({})


def boot_clock() -> float:
    """Return the seconds since this machine booted, including sleep where the system reports it."""
    clock = getattr(time, "CLOCK_BOOTTIME", None)
    return time.monotonic() if clock is None else time.clock_gettime(clock)


def boot_id() -> str:
    """Return what names this boot of the machine; a new name at each call where the system has none."""
    return BOOT_ID.read_text().strip() if BOOT_ID.exists() else uuid.uuid4().hex


def this_machine(instance: Ec2Instance | None) -> MeteredMachine:
    boot = boot_id()
    up = boot_clock()
    if instance is None:
        return MeteredMachine(key=boot, boot=boot, boot_seconds=up, age_seconds=0.0, rented=False)
    if instance.launched_at is None or instance.read_at is None:
        return MeteredMachine(key=instance.id, boot=boot, boot_seconds=up, age_seconds=up)
    # An instance's age is at least its uptime.
    age = (instance.read_at - instance.launched_at).total_seconds()
    return MeteredMachine(
        key=f"{instance.id} {instance.launched_at.isoformat()}", boot=boot, boot_seconds=up, age_seconds=max(age, up)
    )


def machine_price(budget: BudgetConfig, instance: Ec2Instance | None) -> float | None:
    """Return the dollars per hour of one machine, from the configuration or the catalogue; None if unknown."""
    if budget.usd_per_hour is not None:
        return budget.usd_per_hour
    if instance is None:
        return None
    price = load_catalog().price(instance.type, instance.region, instance.market)
    if price is not None:
        return price.usd_per_hour_max  # the most expensive zone: stopping too early can be undone
    if budget.usd is None:
        return None
    raise SkytrainError(
        f"budget.usd: {budget.usd:g} cannot be kept: no price is known for {instance.type} ({instance.market}) in {instance.region}\n"
        "  set budget.usd_per_hour, or: skytrain catalog refresh"
    )


class Meter:
    """The count of cost while an attempt runs on `machines`; `before` is the run's recorded cost so far."""

    def __init__(
        self, machines: Sequence[MeteredMachine], usd_per_hour: float | None, before: Spend = NOTHING_SPENT
    ) -> None:
        machines = list(
            {machine.key: machine for machine in machines}.values()
        )  # in tests, one machine may run several nodes
        self._began = boot_clock()
        self._usd_per_second = (usd_per_hour or 0.0) / 3600
        self.usd_per_hour = None if usd_per_hour is None else usd_per_hour * len(machines)
        self.idle_seconds = 0.0  # longest time that a machine was billed while the run was stopped
        self.save_seconds = before.save_seconds  # duration of the run's slowest save
        # machines that wait, at the time of their last records
        self._waiting = 0
        self._noted = self._began
        self._others = {key: count for key, count in before.counts.items() if key not in {m.key for m in machines}}
        self._starts = {machine.key: self._start(machine, before) for machine in machines}

    def _start(self, machine: MeteredMachine, before: Spend) -> Count:
        known = before.counts.get(machine.key)
        if known is None:
            new = machine.age_seconds
            known = Count(0.0, 0.0, machine.boot, machine.boot_seconds)
        elif before.stopped and not machine.rented:
            new = 0.0
        else:
            same_boot = known.boot == machine.boot
            # Negative if the last record was a heartbeat's, which counts ahead: this attempt counts from now.
            missed = machine.boot_seconds - known.boot_seconds if same_boot else machine.age_seconds - known.seconds
            new = missed if same_boot else max(0.0, missed)
            if before.stopped:
                self.idle_seconds = max(self.idle_seconds, new)
        usd = known.usd + new * self._usd_per_second
        seconds = known.seconds + new
        return Count(usd, seconds, machine.boot, machine.boot_seconds)

    def note_others(self, spends: Iterable[Mapping[str, Any]]) -> None:
        """Record what machines that take no part in this attempt cost meanwhile: those that wait."""
        before = self._others
        counts = largest_counts([{"machines": {key: asdict(count) for key, count in before.items()}}, *spends])
        self._others = {key: count for key, count in counts.items() if key not in self._starts}
        self._waiting = sum(
            key not in before or count.seconds > before[key].seconds for key, count in self._others.items()
        )
        self._noted = boot_clock()

    def note_save(self, seconds: float) -> None:
        """Record the duration of a save, for this attempt and later ones."""
        self.save_seconds = max(self.save_seconds, seconds)

    def elapsed_seconds(self) -> float:
        """Return the seconds since this attempt started."""
        return boot_clock() - self._began

    def counts(self, *, in_seconds: float = 0.0) -> dict[str, Count]:
        """Return the counts of all machines now, or `in_seconds` from now."""
        passed = self.elapsed_seconds() + in_seconds
        return {
            **self._others,
            **{
                key: Count(
                    start.usd + passed * self._usd_per_second,
                    start.seconds + passed,
                    start.boot,
                    start.boot_seconds + passed,
                )
                for key, start in self._starts.items()
            },
        }

    def usd(self, *, in_seconds: float = 0.0) -> float:
        """Return the cost of the run now, or `in_seconds` from now."""
        # Waiting machines cost as much as training ones, also since their last record.
        waited = self._waiting * (boot_clock() - self._noted + in_seconds)
        ahead = (in_seconds * len(self._starts) + waited) * self._usd_per_second
        return sum(count.usd for count in self.counts().values()) + ahead

    def spending(self) -> Spending:
        """Return the cost of the run now and what an hour adds, for questions to its `Budget`."""
        rented = len(self._starts) + self._waiting
        price = None if self.usd_per_hour is None else self._usd_per_second * 3600 * rented
        return Spending(self.usd(), price, self.save_seconds)

    def record(self, *, in_seconds: float = 0.0) -> dict[str, Any]:
        """Return a line of the attempt's spend stream: the counts of the whole run, so the newest line is enough."""
        return {
            "usd": self.usd(in_seconds=in_seconds) if self.usd_per_hour is not None else None,
            "usd_per_hour": self.usd_per_hour,
            "save_seconds": self.save_seconds,
            "machines": {key: asdict(count) for key, count in self.counts(in_seconds=in_seconds).items()},
        }


def read_spend(store: Store, run: str, saved: Mapping[str, Any] | None = None) -> Spend:
    """Return the spend recorded by all attempts, at least that of the checkpoint to resume from (`saved`)."""
    records = [*last_records(store, run, "spend").values(), *([saved] if saved else [])]
    records += HostSpends(store, run).read()
    numbers = attempt_numbers(store, run)
    return Spend(
        counts=largest_counts(records),
        save_seconds=max((record.get("save_seconds") or 0.0 for record in records), default=0.0),
        stopped=bool(numbers) and read_outcome(store, run, numbers[-1]) is not None,
    )


def spent_usd(store: Store, run: str) -> float:
    """Return what a run has cost so far, by all that its machines recorded; 0 for a run that has none."""
    return sum(count.usd for count in read_spend(store, run).counts.values())


def recorded_usd(store: Store, run: str, attempt: int) -> float | None:
    """Return the cost of the whole run as an attempt last recorded it; None if it recorded none."""
    parts = [stat.key for stat in store.list(f"{attempt_key(run, attempt)}/spend/") if stat.size]
    return read_lines(store, parts[-1])[-1].get("usd") if parts else None


def largest_counts(spends: Iterable[Mapping[str, Any]]) -> dict[str, Count]:
    """Return the largest recorded count of each machine."""
    counts: dict[str, Count] = {}
    for record in spends:
        for key, fields in record.get("machines", {}).items():
            count = Count(**fields)
            if key not in counts or count.seconds > counts[key].seconds:
                counts[key] = count
    return counts


def last_records(store: Store, run: str, stream: str) -> dict[int, dict[str, Any]]:
    """Return the newest line of a stream for each attempt."""
    parts: dict[int, str] = {}
    for stat in store.list(f"runs/{run}/attempts/"):
        number, _, rest = stat.key.removeprefix(f"runs/{run}/attempts/").partition("/")
        if rest.startswith(f"{stream}/") and number.isdigit() and stat.size:
            parts[int(number)] = stat.key
    return {number: read_lines(store, key)[-1] for number, key in sorted(parts.items())}
