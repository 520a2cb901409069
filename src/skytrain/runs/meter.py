"""The meter: what a run has cost so far, over every attempt and every machine, from the store alone.

Each machine has its own count, and an attempt continues the count that it finds. So the time between a kill and the next
start on a machine that lived on is counted, a restart resets nothing, and two attempts on one machine count it once.
An EC2 instance is counted from its launch, and also while the run was stopped on purpose: it is rented all the while.
Any other machine is counted from the run's first start, and not while the run was stopped.

Clocks: seconds since the machine booted, which nobody sets, and the metadata service's own for the age of an instance.
The machine's time of day is never used: it may be days ahead before it is set.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ..config import BudgetConfig, SkytrainError
from ..planning import load_catalog
from ..storage import Store
from .attempts import attempt_numbers, read_outcome
from .imds import Ec2Instance
from .reading import read_lines

BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


@dataclass(frozen=True)
class MeteredMachine:
    """One machine as it is when an attempt starts on it."""

    key: str  # the same from its launch to its end
    boot: str
    boot_seconds: float  # since it booted
    age_seconds: float  # since it was launched, for EC2; elsewhere 0, since nobody pays before the run begins
    rented: bool = True  # by the hour, whether the run uses it or not: an EC2 instance


@dataclass(frozen=True)
class Count:
    """What one machine has cost a run, and when, by its own clock."""

    usd: float
    seconds: float
    boot: str
    boot_seconds: float


@dataclass(frozen=True)
class Spend:
    """What a run has cost before an attempt."""

    counts: Mapping[str, Count]
    save_seconds: float = 0.0  # that its slowest save took
    stopped: bool = False  # the attempt before ended on purpose


NOTHING_SPENT = Spend({})


def boot_clock() -> float:
    """Seconds since this machine booted, sleep included where the system can tell."""
    clock = getattr(time, "CLOCK_BOOTTIME", None)
    return time.monotonic() if clock is None else time.clock_gettime(clock)


def this_machine(instance: Ec2Instance | None) -> MeteredMachine:
    boot = BOOT_ID.read_text().strip() if BOOT_ID.exists() else uuid.uuid4().hex
    up = boot_clock()
    if instance is None:
        return MeteredMachine(boot, boot, up, 0.0, rented=False)
    if instance.launched_at is None or instance.read_at is None:
        return MeteredMachine(instance.id, boot, up, up)
    # An instance is at least as old as it is up.
    age = (instance.read_at - instance.launched_at).total_seconds()
    return MeteredMachine(f"{instance.id} {instance.launched_at.isoformat()}", boot, up, max(age, up))


def machine_price(budget: BudgetConfig, instance: Ec2Instance | None) -> float | None:
    """Dollars per hour of one machine: as configured, or the catalogue's; None where nobody can tell."""
    if budget.usd_per_hour is not None:
        return budget.usd_per_hour
    if instance is None:
        return None
    price = load_catalog().price(instance.type, instance.region, instance.market)
    if price is not None:
        return price.usd_per_hour_max  # of the region's zones: a stop too early can be undone
    if budget.usd is None:
        return None
    raise SkytrainError(
        f"budget.usd: {budget.usd:g} cannot be kept: no price is known for {instance.type} ({instance.market}) in {instance.region}\n"
        "  set budget.usd_per_hour, or: skytrain catalog refresh"
    )


class Meter:
    """Counts while an attempt runs. `machines` are all that it runs on; `before` is what the store knows of the run's."""

    def __init__(
        self, machines: Sequence[MeteredMachine], usd_per_hour: float | None, before: Spend = NOTHING_SPENT
    ) -> None:
        machines = list({machine.key: machine for machine in machines}.values())  # one may run several nodes of a test
        self._began = boot_clock()
        self._usd_per_second = (usd_per_hour or 0.0) / 3600
        self.usd_per_hour = None if usd_per_hour is None else usd_per_hour * len(machines)
        self.idle_seconds = 0.0  # the longest that one of them was paid for while the run was stopped
        self.save_seconds = before.save_seconds  # that the run's slowest save took
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
            missed = machine.boot_seconds - known.boot_seconds if same_boot else machine.age_seconds - known.seconds
            new = max(0.0, missed)
            if before.stopped:
                self.idle_seconds = max(self.idle_seconds, new)
        usd, seconds = known.usd + new * self._usd_per_second, known.seconds + new
        return Count(usd, seconds, machine.boot, machine.boot_seconds)

    def note_save(self, seconds: float) -> None:
        """How long a save took, for this attempt and those after it."""
        self.save_seconds = max(self.save_seconds, seconds)

    def elapsed_seconds(self) -> float:
        """Of this attempt."""
        return boot_clock() - self._began

    def counts(self) -> dict[str, Count]:
        """All machines' counts as of now."""
        passed = self.elapsed_seconds()
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
        """What the run has cost, or will have cost after so long."""
        ahead = in_seconds * self._usd_per_second * len(self._starts)
        return sum(count.usd for count in self.counts().values()) + ahead

    def record(self) -> dict[str, Any]:
        """As a line of the attempt's spend: the whole run's counts, so that the newest line is enough."""
        return {
            "usd": self.usd() if self.usd_per_hour is not None else None,
            "usd_per_hour": self.usd_per_hour,
            "save_seconds": self.save_seconds,
            "machines": {key: asdict(count) for key, count in self.counts().items()},
        }


def read_spend(store: Store, run: str, saved: Mapping[str, Any] | None = None) -> Spend:
    """What all attempts left, and at least what the checkpoint that is resumed from says (`saved`)."""
    records = [*last_records(store, run, "spend").values(), *([saved] if saved else [])]
    numbers = attempt_numbers(store, run)
    return Spend(
        counts=largest_counts(records),
        save_seconds=max((record.get("save_seconds") or 0.0 for record in records), default=0.0),
        stopped=bool(numbers) and read_outcome(store, run, numbers[-1]) is not None,
    )


def largest_counts(spends: Iterable[Mapping[str, Any]]) -> dict[str, Count]:
    """By machine, the largest count of all records."""
    counts: dict[str, Count] = {}
    for record in spends:
        for key, fields in record.get("machines", {}).items():
            found = Count(**fields)
            if key not in counts or found.seconds > counts[key].seconds:
                counts[key] = found
    return counts


def last_records(store: Store, run: str, stream: str) -> dict[int, dict[str, Any]]:
    """By attempt, the newest line of a stream."""
    parts: dict[int, str] = {}
    for stat in store.list(f"runs/{run}/attempts/"):
        number, _, rest = stat.key.removeprefix(f"runs/{run}/attempts/").partition("/")
        if rest.startswith(f"{stream}/") and number.isdigit() and stat.size:
            parts[int(number)] = stat.key
    return {number: read_lines(store, key)[-1] for number, key in sorted(parts.items())}
