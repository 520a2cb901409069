"""The meter: the cost of a run so far, over all attempts and machines, from records in the store.

Each machine has its own count, and an attempt continues the count that it finds. So the time between a kill and the
next start on the same machine is counted, a restart resets nothing, and two attempts on one machine count it once.
An EC2 instance is counted from its launch, including the time while the run was stopped: it is billed all the time.
Any other machine is counted from the start of the run's first command to the end of each, and not while the run was
stopped. A command counts its own time (`CommandMeter`): that of its workers before they claim an attempt, of their end,
and of those that are killed before they write anything.

While a rented machine lives, its records count ahead, so that a lost one is not counted too low. When all of a run's
rented machines have ended and EC2 has told when (`runs/<run>/billed/`), its times are what the run has cost.

Clocks: seconds since boot, which cannot be set, and the metadata service's clock for the age of an instance.
The machine's wall clock is never used: before it is synchronized it may be days off.
"""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ..aws import Ec2Instance
from ..config import DONE, BudgetConfig, SkytrainError
from ..planning import Spending, load_catalog
from ..storage import (
    NO_SHAPE,
    Shape,
    Store,
    damaged,
    is_amount,
    is_clock,
    is_mapping,
    is_text,
    is_whole,
    maybe,
    read_lines,
    read_object,
)
from .attempts import attempt_key, attempt_numbers, read_fence, read_outcome
from .heartbeats import HostHeartbeats, HostRecord, host_record, meeting_folder


def is_counts(value: Any) -> bool:
    """Return whether the value is what machines have cost so far, as `Count` has it, by their keys."""
    kinds = {"usd": is_amount, "seconds": is_amount, "boot": is_text, "boot_seconds": is_clock}
    return is_mapping(value) and all(
        is_mapping(count) and count.keys() == kinds.keys() and all(kind(count[name]) for name, kind in kinds.items())
        for count in value.values()
    )


SPEND: Shape = {  # of a line of a spend stream, and of the cost in a heartbeat
    "machines": maybe(is_counts),
    "usd": maybe(is_amount),
    "usd_per_hour": maybe(is_amount),
    "save_seconds": maybe(is_amount),
    "saved_step": maybe(is_whole),
    "at": maybe(is_text),
}
BILLED: Shape = {"seconds": maybe(is_amount), "usd": maybe(is_amount)}
INSTANCE_IDS = "i-"  # how the keys of rented machines begin
BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


@dataclass(frozen=True)
class MeteredMachine:
    """The state of one machine when an attempt starts on it."""

    key: str  # constant for the lifetime of the machine
    boot: str
    boot_seconds: float  # since it booted
    age_seconds: float  # since launch, for EC2; 0 elsewhere, where cost starts with the run
    rented: bool = True  # billed by the hour even while the run is stopped: an EC2 instance
    job_seconds: float = 0.0  # since the command that runs the job started, where the machine is not rented


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
    open: frozenset[str] = frozenset()  # machines whose last command has not ended, or was killed


NOTHING_SPENT = Spend({})


def boot_clock() -> float:
    """Return the seconds since this machine booted, including sleep where the system reports it."""
    clock = getattr(time, "CLOCK_BOOTTIME", None)
    return time.monotonic() if clock is None else time.clock_gettime(clock)


def boot_id() -> str:
    """Return what names this boot of the machine; a new name at each call where the system has none."""
    return BOOT_ID.read_text().strip() if BOOT_ID.exists() else uuid.uuid4().hex


def this_machine(instance: Ec2Instance | None, job_began: float | None = None) -> MeteredMachine:
    """Return the state of this machine. `job_began` is when its job's command started, by the machine's own clock."""
    boot = boot_id()
    up = boot_clock()
    if instance is None:
        ran = 0.0 if job_began is None else max(0.0, up - job_began)
        return MeteredMachine(key=boot, boot=boot, boot_seconds=up, age_seconds=0.0, rented=False, job_seconds=ran)
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
        self._saved_step: int | None = None  # of the newest checkpoint that this attempt has committed
        # machines that wait, at the time of their last records
        self._waiting = 0
        self._noted = self._began
        self._others = {key: count for key, count in before.counts.items() if key not in {m.key for m in machines}}
        self._starts = {machine.key: self._start(machine, before) for machine in machines}
        self._known_usd = sum(count.usd for count in before.counts.values())

    def _start(self, machine: MeteredMachine, before: Spend) -> Count:
        known = before.counts.get(machine.key)
        # Negative if the last record was a heartbeat's, which counts ahead: this attempt counts from now.
        missed = machine.boot_seconds - known.boot_seconds if known and known.boot == machine.boot else None
        if known is None:
            new = machine.age_seconds if machine.rented else machine.job_seconds
            known = Count(0.0, 0.0, machine.boot, machine.boot_seconds)
        elif machine.rented:
            new = missed if missed is not None else max(0.0, machine.age_seconds - known.seconds)
            if before.stopped:
                self.idle_seconds = max(self.idle_seconds, new)
        elif missed is None:
            new = machine.job_seconds
        elif before.stopped and machine.key not in before.open:
            new = min(missed, machine.job_seconds)  # the time while the run was stopped is not counted
        else:
            new = missed
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

    def note_commit(self, step: int) -> None:
        """Record that a checkpoint is committed: one that is missing later was lost, and not merely never saved."""
        self._saved_step = step

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
        # Heartbeats count ahead; what people have been shown does not fall when an attempt counts from now.
        return max(self._known_usd, sum(count.usd for count in self.counts().values()) + ahead)

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
            "saved_step": self._saved_step,
            "machines": {key: asdict(count) for key, count in self.counts(in_seconds=in_seconds).items()},
        }


def read_spend(store: Store, run: str, saved: Mapping[str, Any] | None = None) -> Spend:
    """Return the spend recorded by all attempts, at least that of the checkpoint to resume from (`saved`)."""
    records = [*last_records(store, run, "spend").values(), *([saved] if saved else [])]
    commands = command_spends(store, run)
    records += [*HostSpends(store, run).read(), *commands]
    numbers = attempt_numbers(store, run)
    return Spend(
        counts=largest_counts(records),
        save_seconds=max((record.get("save_seconds") or 0.0 for record in records), default=0.0),
        stopped=bool(numbers) and read_outcome(store, run, numbers[-1]) is not None,
        open=frozenset(key for command in commands if command["open"] for key in command["machines"]),
    )


class HostSpends:
    """The cost that each host recorded for itself in its heartbeats.

    The form is that of the attempts' spend streams. `without` names hosts that are counted elsewhere.
    """

    def __init__(self, store: Store, run: str, without: Collection[str] = ()) -> None:
        self._store = store
        self._folder = meeting_folder(run)
        self._without = frozenset(without)
        self._heartbeats = HostHeartbeats(store, run)

    def read(self) -> list[dict[str, Any]]:
        listed = [host_record(stat, self._folder) for stat in self._store.list(self._folder)]
        hosts = [each for each in listed if each is not None and each.host not in self._without]
        return [self._spend(each, record) for each, record in self._heartbeats.read(hosts)]

    def _spend(self, host: HostRecord, record: dict[str, Any]) -> dict[str, Any]:
        spend = record.get("spend")
        if not isinstance(spend, dict) or not all(kind(spend.get(name)) for name, kind in SPEND.items()):
            raise damaged(self._store.url(host.stat.key), "it has no spend")
        return spend


class CommandMeter:
    """The count of this machine by the command that runs a job on it, from the command's start to its end.

    Only of a machine that is not rented: an EC2 instance is counted from its launch, and a node agent counts its host.
    """

    def __init__(self, store: Store, run: str, usd_per_hour: float | None, began: float) -> None:
        self._store = store
        self._run = run
        self._usd_per_hour = usd_per_hour
        self._began = began
        self._meter: Meter | None = None
        self._open = True

    def write(self) -> None:
        """Write the count into the store, with that of earlier commands."""
        if self._meter is None:
            machine = this_machine(None, self._began)
            self._meter = Meter([machine], self._usd_per_hour, read_spend(self._store, self._run))
            self._key = f"{commands_folder(self._run)}{machine.boot}.json"
            self._machine = machine.key
        count = self._meter.counts()[self._machine]
        body = {"open": self._open, "machines": {self._machine: asdict(count)}}
        self._store.write(self._key, json.dumps(body).encode())

    def close(self) -> None:
        """Write the last count. A command that was refused leaves nothing under the run's name."""
        self._open = False
        if self._store.exists(f"runs/{self._run}/run.json"):
            self.write()
        elif self._meter is not None:
            self._store.delete(self._key)


def commands_folder(run: str) -> str:
    """Return the folder of what commands have counted, an object for each machine."""
    return f"runs/{run}/commands/"


def command_spends(store: Store, run: str) -> list[dict[str, Any]]:
    """Return what commands have counted. The form is that of the attempts' spend streams."""
    found = []
    for stat in store.list(commands_folder(run)):
        record = read_object(store, stat.key, SPEND)
        if not isinstance(record.get("machines"), dict) or "open" not in record:
            raise damaged(store.url(stat.key), "it has no count")
        found.append(record)
    return found


def spent_usd(store: Store, run: str) -> float:
    """Return what a run has cost so far, by all that its machines recorded; 0 for a run that has none.

    Budgets are compared with it: machines of the next launch count on from these records.
    """
    return sum(count.usd for count in read_spend(store, run).counts.values())


def final_usd(store: Store, run: str) -> float:
    """Return what a run has cost so far, for people: by EC2's times if all its machines have ended."""
    return sum(count.usd for count in final_counts(store, run, read_spend(store, run).counts).values())


def billed_key(run: str, machine: str) -> str:
    return f"runs/{run}/billed/{machine}.json"


def write_billed(store: Store, run: str, machine: str, seconds: float | None, usd: float | None) -> None:
    """Record what a terminated machine has cost by the service's own times; None where it does not tell when it ended."""
    store.write(billed_key(run, machine), json.dumps({"seconds": seconds, "usd": usd}).encode())


def billed_machines(store: Store, run: str) -> set[str]:
    """Return the machines that are recorded as terminated."""
    return {stat.key.rpartition("/")[2].removesuffix(".json") for stat in store.list(f"runs/{run}/billed/")}


def settled_counts(store: Store, run: str, counts: Mapping[str, Count]) -> dict[str, Count] | None:
    """Return the counts of a run by EC2's own times; None unless every rented machine is terminated.

    All or none: a figure that changed with each machine that ends would fall while the others run. A machine of which EC2
    does not say when it ended, such as a spot machine that it took back, keeps its own count.
    """
    # The key of a rented machine has its id and its launch. One that was stopped and started has two, and EC2 only the last.
    rented = {key.partition(" ")[0]: key for key in counts if key.startswith(INSTANCE_IDS)}
    several = len(rented) < sum(key.startswith(INSTANCE_IDS) for key in counts)
    if not rented or several or not rented.keys() <= billed_machines(store, run):
        return None
    settled = dict(counts)
    for machine, key in rented.items():
        billed = read_object(store, billed_key(run, machine), BILLED)
        if billed.get("seconds") is not None and billed.get("usd") is not None:
            settled[key] = Count(billed["usd"], billed["seconds"], counts[key].boot, billed["seconds"])
    return settled


def is_settled(store: Store, run: str) -> bool:
    """Return whether all rented machines of the run have ended, and EC2 has told when."""
    return settled_counts(store, run, read_spend(store, run).counts) is not None


def final_counts(store: Store, run: str, counts: Mapping[str, Count]) -> Mapping[str, Count]:
    """Return the counts by EC2's own times where they are settled, else as the machines recorded them."""
    return settled_counts(store, run, counts) or counts


def recorded_usd(store: Store, run: str, attempt: int) -> float | None:
    """Return the cost of the whole run as an attempt last recorded it; None if it recorded none."""
    return _last_heartbeat(store, run, attempt).get("usd")


def recorded_commit(store: Store, run: str) -> tuple[int, str]:
    """Return the newest step that the run's records say is saved, and which record says so; 0 without one.

    The newest attempt that trained is enough: what an earlier one saved beyond the step at which it resumed does not count.
    """
    resumed = read_fence(store, run).resumed
    if not resumed:
        return 0, ""
    attempt = max(resumed)
    outcome = read_outcome(store, run, attempt) or {}
    found = [
        (resumed[attempt], f"attempt {attempt} resumed from it"),
        (_last_heartbeat(store, run, attempt).get("saved_step") or 0, f"attempt {attempt} saved it"),
        (outcome["step"] if outcome.get("outcome") == DONE else 0, f"attempt {attempt} was done then"),
    ]
    return max(found)


def _last_heartbeat(store: Store, run: str, attempt: int) -> dict[str, Any]:
    parts = [stat.key for stat in store.list(f"{attempt_key(run, attempt)}/spend/") if stat.size]
    return read_lines(store, parts[-1], SPEND)[-1] if parts else {}


def largest_counts(spends: Iterable[Mapping[str, Any]]) -> dict[str, Count]:
    """Return the largest recorded count of each machine."""
    counts: dict[str, Count] = {}
    for record in spends:
        for key, fields in (record.get("machines") or {}).items():
            count = Count(**fields)
            if key not in counts or count.seconds > counts[key].seconds:
                counts[key] = count
    return counts


def last_records(store: Store, run: str, stream: str) -> dict[int, dict[str, Any]]:
    """Return the newest line of a stream for each attempt."""
    parts: dict[int, str] = {}
    for stat in store.list(f"runs/{run}/attempts/"):
        number, _, rest = stat.key.removeprefix(f"runs/{run}/attempts/").partition("/")
        if rest.startswith(f"{stream}/") and number.isdecimal() and stat.size:
            parts[int(number)] = stat.key
    found = {
        number: read_lines(store, key, SPEND if stream == "spend" else NO_SHAPE)
        for number, key in sorted(parts.items())
    }
    return {number: lines[-1] for number, lines in found.items() if lines}
