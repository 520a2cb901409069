"""Costs: what the meter counted of a run, by attempt and machine; storage and requests estimated; AWS's bill."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from ..aws import RUN, AwsSession, Call, CloudError
from ..config import Config, format_bytes, format_seconds, plural
from ..planning import unit_prices
from ..report import text_table
from ..runs import (
    Count,
    HostSpends,
    LaunchRecord,
    command_spends,
    final_usd,
    last_records,
    launches_of,
    load_run,
    read_pipeline,
    read_spend,
    settled_counts,
)
from ..storage import Store, open_store
from ..targets import billing_targets, built_in_target, count_launches, ledger_rows
from ..tuning import FINAL, SweepStore, machines_of_sweep

# us-east-2. Rank 0 writes spend, metrics and log and lists the attempts every five seconds, and reads one small object.
WRITES_PER_HOUR = 4 * 720
READS_PER_HOUR = 720
BILLING_REGION = "us-east-1"  # Cost Explorer has one endpoint


@dataclass(frozen=True)
class MachineCost:
    """The cost of one machine during one attempt; without an attempt, while it waited or after the last one."""

    attempt: int | None
    machine: str
    seconds: float
    usd: float

    @property
    def usd_per_hour(self) -> float | None:
        return self.usd / self.seconds * 3600 if self.seconds else None


@dataclass(frozen=True)
class JobCost:
    """The cost of a job that its service bills, and what the figure is based on."""

    name: str
    where: str
    state: str
    seconds: float | None
    usd: float | None
    basis: str


@dataclass(frozen=True)
class Bill:
    """AWS's own figures for the run, by service; `problem` says why there are none."""

    usd: float | None = None
    services: Mapping[str, float] | None = None
    problem: str | None = None


@dataclass(frozen=True)
class RunCosts:
    """The costs of a run. Machines are counted; storage and requests are estimates."""

    run: str
    machines: tuple[MachineCost, ...]
    metered: bool  # whether any attempt knew a price
    stored_bytes: int
    storage_usd_per_month: float
    requests_usd: float
    bill: Bill | None
    jobs: tuple[JobCost, ...] = ()  # of targets that bill jobs
    unread_jobs: int = 0  # of those, without a session to ask about them
    stages: tuple[tuple[str, ...], ...] = ()  # of the pipeline that the run belongs to: a table, header first
    settled: bool = False  # whether machines are counted by EC2's own times: all have ended

    @property
    def usd(self) -> float:
        return sum(machine.usd for machine in self.machines) + sum(job.usd or 0.0 for job in self.jobs)

    def to_json(self) -> str:
        return json.dumps({**dataclasses.asdict(self), "usd": self.usd}, indent=1)

    def to_text(self) -> str:
        tables = [text_table(cost_rows(self))] if self.machines or not self.jobs else []
        tables += [text_table(_job_rows(self))] if self.jobs else []
        tables += [f"\n{text_table(list(self.stages))}"] if self.stages else []
        return "\n".join([*tables, *cost_notes(self)])


def costs(
    config: Config, run: str, session: AwsSession | None, tell: Callable[[str], None] = lambda text: None
) -> RunCosts:
    """Return the costs of a run, with AWS's bill if there is a session to ask."""
    store = open_store(config.store)
    launched = launches_of(store, run)
    if session is not None:
        count_launches(session, store, [*launched, *_launches_of_stages(store, run)], tell)
    launches = billed_launches(store, run)
    # A launch that prepares data, or whose machines have not begun to train, has no record of a run.
    began_at = (
        launched[0].launched_at
        if launched and not store.exists(f"runs/{run}/run.json")
        else load_run(store, run).started_at
    )
    machines = machine_costs(store, run)
    settled = settled_counts(store, run, read_spend(store, run).counts)
    if settled is not None:
        machines = settled_costs(machines, settled)
    stored = sum(stat.size for stat in store.list(f"runs/{run}"))
    hours = sum(machine.seconds for machine in machines) / 3600
    remote = store.local_path("") is None
    return RunCosts(
        run=run,
        machines=tuple(machines),
        metered=any(machine.usd for machine in machines),
        stored_bytes=stored,
        storage_usd_per_month=unit_prices()["s3"].usd * stored / 1e9 if remote else 0.0,
        requests_usd=hours
        * (
            WRITES_PER_HOUR * unit_prices()["s3-writes"].usd / 1000
            + READS_PER_HOUR * unit_prices()["s3-reads"].usd / 1000
        )
        if remote
        else 0.0,
        bill=None if session is None else read_bill(session, run, began_at),
        jobs=() if session is None else tuple(job_costs(session, launches)),
        unread_jobs=len(launches) if session is None else 0,
        stages=tuple(ledger_rows(store, run)),
        settled=settled is not None,
    )


def _launches_of_stages(store: Store, run: str) -> list[LaunchRecord]:
    """Return the launches of the other stages of a run's pipeline."""
    record = read_pipeline(store, run)
    others = [stage.run for stage in record.stages if stage.run != run] if record else []
    return [launch for other in others for launch in launches_of(store, other)]


def sweep_costs(
    config: Config, name: str, session: AwsSession | None, tell: Callable[[str], None] = lambda text: None
) -> list[tuple[str, ...]] | None:
    """Return the ledger of a sweep as a table, header first; None where there is no sweep of this name.

    Rented machines cost more than its entries: they boot, end, and are lost between two records.
    """
    store = open_store(config.store)
    sweep = SweepStore(store, name)
    if not sweep.exists():
        return None
    machines = machines_of_sweep(store, name)
    if session is not None:
        count_launches(session, store, [one for run in machines for one in launches_of(store, run)], tell)
    rows: list[tuple[str, ...]] = [("ENTRY", "RESERVED", "DOLLARS")]
    entries = sorted(sweep.entries(), key=lambda entry: entry.what)
    for entry in entries:
        dollars = "-" if entry.charged_usd is None else f"{entry.charged_usd:.2f}"
        rows.append((entry.what, f"{entry.reserved_usd:.2f}", dollars))
    charged = {entry.what: entry.charged_usd or 0.0 for entry in entries}
    trials = sum(usd for what, usd in charged.items() if what != FINAL)
    beyond = max(0.0, sum(final_usd(store, run) for run in machines) - trials)
    if beyond:
        rows.append(("machines beyond these", "", f"{beyond:.2f}"))
    return [*rows, ("all", "", f"{sum(charged.values()) + beyond:.2f}")]


def billed_launches(store: Store, run: str) -> list[LaunchRecord]:
    """Return the launches of a run whose target bills jobs, oldest first."""
    names = {target.name for target in billing_targets()}
    return [record for record in launches_of(store, run) if record.target in names]


def job_costs(session: AwsSession, launches: Sequence[LaunchRecord]) -> Iterator[JobCost]:
    """Yield what the jobs of these launches cost, newest first."""
    now = datetime.now(UTC)
    for record in reversed(launches):
        target = built_in_target(record.target)
        assert target is not None
        for job in target.job_costs(session, [record], now):
            yield JobCost(
                name=job.name,
                where=f"{record.target} {job.place}",
                state=job.state,
                seconds=job.seconds,
                usd=job.usd,
                basis=job.usd_basis,
            )


def machine_costs(store: Store, run: str) -> list[MachineCost]:
    """Return what each attempt added to each machine's count. Every record has the counts of the whole run so far.

    What hosts have recorded beyond that comes last.
    """
    added: list[MachineCost] = []
    before: dict[str, Count] = {}
    attempts: list[tuple[int | None, dict[str, Any]]] = [*last_records(store, run, "spend").items()]
    for attempt, record in [*attempts, *((None, spend) for spend in HostSpends(store, run).read())]:
        for key, fields in (record.get("machines") or {}).items():
            now = Count(**fields)
            then = before.get(key)
            seconds = now.seconds - (then.seconds if then else 0.0)
            usd = now.usd - (then.usd if then else 0.0)
            if seconds > 0 or usd > 0:
                added.append(MachineCost(attempt, key, max(0.0, seconds), max(0.0, usd)))
                before[key] = now
    for command in command_spends(store, run):
        for key, fields in command["machines"].items():
            added = _with_command(added, key, Count(**fields), before.get(key))
    return added


def settled_costs(added: Sequence[MachineCost], settled: Mapping[str, Count]) -> list[MachineCost]:
    """Return the costs whose sum for each machine is the settled one; what was counted ahead is taken off the last."""
    kept = []
    left = {key: (count.seconds, count.usd) for key, count in settled.items()}
    last = {each.machine: number for number, each in enumerate(added)}
    for number, each in enumerate(added):
        seconds, usd = left[each.machine]
        cut = (seconds, usd) if number == last[each.machine] else (min(each.seconds, seconds), min(each.usd, usd))
        left[each.machine] = (seconds - cut[0], usd - cut[1])
        if cut[0] > 0 or cut[1] > 0:
            kept.append(dataclasses.replace(each, seconds=cut[0], usd=cut[1]))
    return kept


def _with_command(added: list[MachineCost], key: str, now: Count, then: Count | None) -> list[MachineCost]:
    """Add what a command counted beyond its attempts, to the last of them on its machine: it is the end of that one."""
    seconds = now.seconds - (then.seconds if then else 0.0)
    usd = now.usd - (then.usd if then else 0.0)
    if seconds <= 0 and usd <= 0:
        return added
    last = next((number for number in reversed(range(len(added))) if added[number].machine == key), None)
    if last is None:
        return [*added, MachineCost(None, key, seconds, usd)]
    more = dataclasses.replace(added[last], seconds=added[last].seconds + seconds, usd=added[last].usd + usd)
    return [*added[:last], more, *added[last + 1 :]]


def bill_call(run: str, started_at: str, today: datetime | None = None) -> Call:
    """Return the request to Cost Explorer, whose data lag by about a day. The tag must be a cost allocation tag."""
    end = (today or datetime.now(UTC)).date() + timedelta(days=1)  # exclusive
    start = min(datetime.fromisoformat(started_at).date(), end - timedelta(days=1))
    return Call(
        "ce",
        "GetCostAndUsage",
        {
            "TimePeriod": {"Start": start.isoformat(), "End": end.isoformat()},
            "Granularity": "MONTHLY",
            "Metrics": ["UnblendedCost"],
            "Filter": {"Tags": {"Key": RUN, "Values": [run], "MatchOptions": ["EQUALS"]}},
            "GroupBy": [{"Type": "DIMENSION", "Key": "SERVICE"}],
        },
    )


def read_bill(session: AwsSession, run: str, started_at: str) -> Bill:
    """Ask Cost Explorer; where it is not allowed, say so."""
    try:
        answer = session.perform(bill_call(run, started_at), BILLING_REGION)
    except CloudError as error:
        return Bill(problem=str(error).partition("\n")[0])
    services: dict[str, float] = {}
    for period in answer["ResultsByTime"]:
        for group in period.get("Groups", []):
            name = group["Keys"][0]
            amount = float(group["Metrics"]["UnblendedCost"]["Amount"])
            services[name] = services.get(name, 0.0) + amount
    if not services:
        return Bill(problem=f"no costs with the tag {RUN}={run} yet: it must be an active cost allocation tag")
    return Bill(sum(services.values()), services)


def cost_rows(costs: RunCosts) -> list[tuple[str, ...]]:
    """Return the machines of each attempt as a table, header first."""
    rows: list[tuple[str, ...]] = [("ATTEMPT", "MACHINE", "TIME", "$/HOUR", "DOLLARS")]
    for each in costs.machines:
        rate = "?" if not each.usd or each.usd_per_hour is None else f"{each.usd_per_hour:.3f}"
        dollars = f"{each.usd:.2f}" if costs.metered else "?"
        attempt = "-" if each.attempt is None else str(each.attempt)
        rows.append((attempt, each.machine, format_seconds(round(each.seconds)), rate, dollars))
    total = sum(each.seconds for each in costs.machines)
    rows.append(("all", "", format_seconds(round(total)), "", f"{costs.usd:.2f}" if costs.metered else "?"))
    return rows


def _job_rows(costs: RunCosts) -> list[tuple[str, ...]]:
    """Return the jobs that their service bills as a table, header first."""
    rows: list[tuple[str, ...]] = [("JOB", "WHERE", "STATE", "RAN", "DOLLARS", "FROM")]
    for job in costs.jobs:
        ran = "-" if job.seconds is None else format_seconds(round(job.seconds))
        rows.append((job.name, job.where, job.state, ran, "?" if job.usd is None else f"{job.usd:.2f}", job.basis))
    return rows


def cost_notes(costs: RunCosts) -> list[str]:
    """Return the lines below the table."""
    lines = []
    if costs.unread_jobs:
        jobs = plural(costs.unread_jobs, "launch", "launches")
        targets = billing_targets()
        places = " and ".join(dict.fromkeys(target.title for target in targets))
        settings = " or ".join(f"cloud={target.name}" for target in targets)
        lines.append(f"{jobs} on {places}: add {settings} to see what they cost")
    if not costs.metered and not costs.jobs and not costs.unread_jobs:
        lines.append("no attempt knew the price of its machine: set budget.usd_per_hour")
    if costs.settled:
        lines.append("all machines have ended: counted by EC2's own launch and end times, not by the meter")
    stored = format_bytes(costs.stored_bytes)
    lines.append(
        f"storage: {stored}, about ${costs.storage_usd_per_month:.2f} a month; requests: about ${costs.requests_usd:.2f}"
    )
    bill = costs.bill
    if bill is not None and bill.services is not None:
        parts = ", ".join(
            f"{name} ${usd:.2f}" for name, usd in sorted(bill.services.items(), key=lambda item: -item[1])
        )
        lines.append(f"AWS's bill so far (it lags by a day): ${bill.usd:.2f}: {parts}")
    elif bill is not None:
        lines.append(f"AWS's bill: unknown: {bill.problem}")
    return lines
