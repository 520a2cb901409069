"""Status: what the store, the target and the account know of runs and sweeps, and how a person reads it."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ..aws import AwsSession, CloudError, open_session
from ..config import Config, SkytrainError
from ..report import (
    describe_status,
    failure_lines,
    machine_notes,
    machine_rows,
    sparkline,
    status_rows,
    sweep_rows,
    text_table,
)
from ..runs import MetricsReader, NoRuns, RunStatus, launches_of
from ..storage import DamagedRecord, ObjectError, open_store
from ..targets import AccountState, RunJobs, account_state, built_in_target, status, target_of
from ..tuning import SweepStatus, find_sweep_status


@dataclass(frozen=True)
class Overview:
    """One run or all runs as the store has them, the jobs that the target lists, and the account's machines."""

    run: str | None  # None: all runs
    runs: list[RunStatus]
    missing: str | None  # why the store has none, where the target or the account still say something
    jobs: RunJobs | None
    account: AccountState | None
    trouble: str | None = None  # why machines of the run's last launch ended before they did any work

    def to_json(self) -> str:
        shown = [dataclasses.asdict(each) for each in self.runs]
        facts: dict[str, object] = {} if self.jobs is None else {"jobs": self.jobs.facts}
        facts |= dataclasses.asdict(self.account) if self.account is not None else {}
        facts |= {"trouble": self.trouble} if self.trouble is not None else {}
        runs = shown[0] if self.run and shown else shown
        return json.dumps({"runs": runs, **facts} if facts else runs, indent=1, default=str)

    def to_text(self, trends: Mapping[str, str] | None = None) -> str:
        if self.run is not None and self.runs:
            lines = [text_table(describe_status(self.runs[0]))]
        else:
            lines = [self.missing] if self.missing is not None else []
            lines += [text_table(_with_trends(status_rows(self.runs), trends))] if self.runs else []
        if self.jobs is not None:
            lines += [line for rows in self.jobs.tables for line in ("", text_table(rows))]
            lines += self.jobs.lines
        lines += [] if self.run else failure_lines(self.runs)
        if self.account is not None:
            machines = self.account.machines
            lines += ["", text_table(machine_rows(self.account)) if machines else "no machine runs in this account"]
            lines += machine_notes(self.account, self.runs)
        lines += [self.trouble] if self.trouble is not None else []
        return "\n".join(lines)


def _with_trends(rows: list[tuple[str, ...]], trends: Mapping[str, str] | None) -> list[tuple[str, ...]]:
    if trends is None:
        return rows
    return [(*rows[0], "LOSS SO FAR"), *((*row, trends.get(row[0], "")) for row in rows[1:])]


class LossTrends:
    """The course of the loss of runs that train, for a view that is shown again and again."""

    def __init__(self, config: Config) -> None:
        self._store = open_store(config.store)
        self._readers: dict[str, MetricsReader] = {}

    def read(self, runs: Sequence[RunStatus]) -> dict[str, str]:
        """Return a sparkline by run."""
        return {each.run: self._trend(each.run) for each in runs if each.state == "running"}

    def _trend(self, run: str) -> str:
        records = self._readers.setdefault(run, MetricsReader(self._store, run)).read()
        losses = [float(record["train/loss"]) for record in records if record.get("train/loss") is not None]
        return sparkline(losses[len(losses) // 10 :], 16)


def overview(config: Config, run: str | None) -> Overview:
    """Look at one run, or at all runs of the store and the machines of the account."""
    jobs = target_of(config).run_jobs(config, run)
    missing = None
    try:
        runs = status(config, run)
    except SkytrainError as error:
        has_jobs = jobs is not None and bool(jobs.facts)
        has_account = isinstance(error, NoRuns) and config.cloud.project is not None
        if not has_jobs and not has_account:
            raise
        runs = []
        missing = str(error).partition("\n")[0]
    session = account_session(config) if run is None or jobs is None else None
    account = None if session is None else account_state(config, session, [each.run for each in runs], run)
    trouble = _trouble(config, session, run) if run is not None and session is not None else None
    return Overview(run=run, runs=runs, missing=missing, jobs=jobs, account=account, trouble=trouble)


def _trouble(config: Config, session: AwsSession, run: str) -> str | None:
    """Return why machines of the run's last launch ended before they did any work; None if AWS cannot be asked."""
    store = open_store(config.store)
    launches = [record for record in launches_of(store, run) if not record.failed]
    target = built_in_target(launches[-1].target) if launches else None
    if target is None:
        return None
    try:
        return target.trouble(session, store, launches[-1])
    except CloudError as error:
        return f"unknown: {error.problem}"
    except (DamagedRecord, ObjectError) as error:  # the rest of the status does not need it
        return f"unknown: {str(error).partition(chr(10))[0]}"


def account_session(config: Config) -> AwsSession | None:
    """Return a session of the account that the configuration names; None without one."""
    if config.cloud.project is None:
        return None
    return open_session(config.cloud.region, config.cloud.account)


@dataclass(frozen=True)
class SweepOverview:
    """A sweep, and the machines that were launched for it."""

    sweep: SweepStatus
    machines: list[RunStatus]

    def to_json(self) -> str:
        return json.dumps(dataclasses.asdict(self.sweep), indent=1)

    def to_text(self) -> str:
        machines = ["", text_table(status_rows(self.machines))] if self.machines else []
        return "\n".join([text_table(sweep_rows(self.sweep)), *machines])


def sweep_overview(config: Config, name: str) -> SweepOverview | None:
    """Look at a sweep; None where there is none of this name."""
    sweep = find_sweep_status(config, name)
    if sweep is None:
        return None
    return SweepOverview(sweep, [each for run in sweep.machines for each in status(config, run)])
