"""Machines of EC2, rented by Auto Scaling groups."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from ...aws import AwsSession, find_metadata, log_destination, open_session, render_calls, stream_lines
from ...config import EXIT_CODES, UNCOMMITTED, Config, SkytrainError
from ...planning import JobKind
from ...runs import LaunchRecord, Reporter, ended_reason, launch_folder, launches_of, may_grow, read_launch
from ...storage import Store, open_store
from ..base import JobLog, LaunchRequest, LaunchTarget, ReadyJob, ShowRun
from ..checks import Finding, Preflight
from ..follow import RunFollower
from ..limits import ask_account, live_launch
from ..plans import PlannedJob, compose_plan, planned_job
from .launch import (
    PreparedLaunch,
    SweepLaunch,
    plan_sweep_launch,
    prepare_launch,
    prepare_stages,
    price_text,
    quiet,
    smoke_job,
    smoke_text,
    start_launch,
    start_launches,
    wait_for_start,
)
from .machines import Ec2Machines, LaunchKeeper, count_machines, has_machines, trouble

if TYPE_CHECKING:
    from ...jobs import NodeRequest, RentedMachines

NEXT = ("cloud=ec2",)
LEFT_ALONE = "The machines need neither this terminal nor this computer."


class Ec2Launcher(LaunchTarget):
    """Rents machines, which survive interruptions and give themselves back."""

    name = "ec2"
    title = "EC2"
    has_tagged_machines = True
    jobs: tuple[JobKind, ...] = ("train", "prepare", "tune", "finish")
    can_smoke = True

    def prepare(self, request: LaunchRequest) -> ReadyJob:
        if request.job == "tune":
            return _sweep(request)
        job = PlannedJob(*planned_job(request), request.keep_seconds, ("--keep",) if request.keep else ())
        first = None
        if request.smoke is not None:
            first = smoke_job(job, request.smoke, lambda overrides: compose_plan(overrides, request.folders, None)[0])
        prepared = prepare_launch(job, Preflight(job.composed.config, job.plan), request.tell, first)

        def start(reporter: Reporter) -> list[str]:
            start_launch(prepared, request.files(), reporter)
            group = prepared.record.groups[0]
            said = []
            if prepared.record.verb == "prepare":
                said.append(f"the tokens will be in {prepared.store.url(prepared.plan.data.folder)}")
            launched = f"launched {prepared.run}: {group.nodes} x {group.instance_type} in {group.zone}"
            return [launched, *said, LEFT_ALONE]

        return ReadyJob(
            name=prepared.run,
            config=job.composed.config,
            requests=render_calls(prepared.given(request.files()).calls),
            summary=_summary(prepared),
            start=start,
            session=prepared.session,
            usd_per_hour=prepared.usd_per_hour,
            before=lambda show, tell: _follow_first(job.composed.config, prepared, show, tell),
            next_arguments=NEXT,
            records=[prepared.record],
        )

    def prepare_stages(
        self, jobs: Sequence[PlannedJob], files: Mapping[str, bytes], tell: Callable[[Finding], None]
    ) -> ReadyJob:
        last = prepare_stages(jobs, tell)
        config = jobs[-1].composed.config

        def start(reporter: Reporter) -> list[str]:
            start_launch(last, files, reporter)
            return [*(f"launched {each.run}" for each in _in_order(last)), LEFT_ALONE]

        return ReadyJob(
            name=last.run,
            config=config,
            requests=render_calls(last.given(files).calls),
            summary=[row for each in _in_order(last) for row in _stage_summary(each)],
            start=start,
            session=last.session,
            usd_per_hour=max(each.usd_per_hour for each in _in_order(last)),
            before=lambda show, tell: _follow_first(config, last, show, tell),
            next_arguments=NEXT,
            records=[each.record for each in _in_order(last)],
        )

    def prepare_together(
        self, jobs: Sequence[PlannedJob], files: Mapping[str, bytes], tell: Callable[[Finding], None]
    ) -> ReadyJob:
        prepared: list[PreparedLaunch] = []
        for job in jobs:
            # The account is checked for the first one, and told once; a failure of a later one is raised all the same.
            show = quiet if prepared else tell
            prepared.append(prepare_launch(job, Preflight(job.composed.config, job.plan), show))

        def start(reporter: Reporter) -> list[str]:
            for one in prepared:  # one that fails leaves those before it running: the same command launches the others
                start_launch(one, files, reporter)
                reporter.note(f"launched {one.run}")
            return [LEFT_ALONE]

        return ReadyJob(
            name=prepared[0].run,
            config=jobs[0].composed.config,
            requests=render_calls([call for one in prepared for call in one.given(files).calls]),
            summary=[("store", prepared[0].store.root)],
            start=start,
            session=prepared[0].session,
            usd_per_hour=sum(one.usd_per_hour for one in prepared),
            follows=False,
            next_arguments=NEXT,
            next_options=False,
            records=[one.record for one in prepared],
        )

    def is_live(self, session: AwsSession, record: LaunchRecord) -> bool:
        return has_machines(session, record)

    def count_machines(self, session: AwsSession, store: Store, record: LaunchRecord) -> None:
        count_machines(session, store, record, running=True)

    def next_offers(self, session: AwsSession, store: Store, record: LaunchRecord) -> LaunchKeeper:
        return LaunchKeeper(session, store, record)

    def trouble(self, session: AwsSession, store: Store, record: LaunchRecord) -> str | None:
        return trouble(session, store, record)

    def gone_reason(self, store: Store, record: LaunchRecord) -> str:
        if (reason := ended_reason(store, record)) is not None:
            return reason
        folder = f"{launch_folder(record)}/boot-failures"
        logs = store.list(f"{folder}/")
        failed = f"; {len(logs)} failed to boot, see {store.url(folder)}" if logs else ""
        return f"no machine is left, and none is asked for{failed}"

    def job_log(self, config: Config, run: str, lines: int | None) -> JobLog | None:
        """Return what the agents sent to CloudWatch; a run has no other log before its first attempt."""
        store = open_store(config.store)
        launches = launches_of(store, run)
        if not launches:
            return None
        record = launches[-1]
        session = open_session(config.cloud.region, config.cloud.account)
        live = live_launch([record], store, datetime.now(UTC), ask_account(session, store)) is not None
        state = "no machine has begun to work on it" if live else "it has no machines any more"
        said = [f"{run}: launched at {record.launched_at}, {record.groups[0].text}; {state}"]
        why = ended_reason(store, record) or self.trouble(session, store, record)
        said += [f"{run}: {why}"] if why is not None else []
        if (place := log_destination(config, run, on_ec2=True)) is not None:
            said = [*stream_lines(session, place.group, place.prefix, lines), *said]
        return JobLog(said, ended=not live)

    def instance(self, config: Config, request: NodeRequest) -> str | None:
        metadata = find_metadata() if request.launch else None
        instance = metadata.instance() if metadata is not None else None
        return instance.id if instance is not None else None

    def machines(
        self, config: Config, request: NodeRequest, instance: str | None, tell: Callable[[str], None]
    ) -> RentedMachines | None:
        if instance is None:
            return None
        store = open_store(config.store)
        record = read_launch(store, request.run, str(request.launch))
        machines = Ec2Machines(open_session(record.region), store, record, instance, tell)
        if not may_grow(store, record):
            machines.set_desired(0)
            raise SkytrainError(
                f"launch {record.id} of run {record.run} was ended or superseded before this machine started: "
                "its groups are ended"
            )
        machines.count_ended()  # this machine may replace one that was lost while it booted
        return machines


TARGETS = {"ec2": Ec2Launcher()}


def _follow_first(config: Config, prepared: PreparedLaunch, show: ShowRun, tell: Callable[[str], None]) -> int | None:
    """Follow what a launch waits for, one after the other, and return an exit code unless the launch itself starts."""
    first = prepared.first
    if first is None:
        return None
    if (code := _follow_first(config, first, show, tell)) is not None:
        return code
    detached = f"detached: {first.run} goes on without this terminal, and {prepared.run} follows it"
    end = show(RunFollower(config, first.run, first.session, launched=True, record=first.record), detached)
    if end is None:
        return 0
    if end.exit_code or not wait_for_start(prepared.store, prepared.record):
        tell(f"{prepared.run} was not started")
        return end.exit_code or EXIT_CODES[UNCOMMITTED]
    return None


def _summary(prepared: PreparedLaunch) -> list[tuple[str, str]]:
    offer = prepared.plan.choice
    record = prepared.record
    first = record.groups[0]
    cost = offer.cost
    highest = offer.nodes * offer.max_usd_per_hour_each
    return [
        ("run", prepared.run),
        (
            "machines",
            f"{offer.nodes} x {offer.instance_type} ({offer.market}) in {first.zone}, {offer.disk_gb:,} GB of disk each",
        ),
        ("price", f"{price_text(prepared)}; at most ${highest:.2f}"),
        ("takes", f"{cost.hours:.1f} h (p90 {cost.hours_p90:.1f} h)"),
        ("costs", f"${cost.usd:.2f} (${cost.usd_p10:.2f} to ${cost.usd_p90:.2f})"),
        *([("budget", _budget_text(budget, cost.usd))] if (budget := prepared.budget_usd) is not None else []),
        (
            "kill time",
            f"{first.kill_at}; at most ${highest * (offer.kill_after_seconds - prepared.waits_seconds) / 3600:.2f} by then",
        ),
        ("store", prepared.store.root),
        *([("smoke run", smoke_text(prepared))] if prepared.first else []),
        *(
            (f"fallback {number}", f"{group.nodes} x {group.instance_type} ({group.market}) in {group.zone}")
            for number, group in enumerate(record.groups[1:], 1)
        ),
    ]


def _in_order(last: PreparedLaunch) -> list[PreparedLaunch]:
    """Return the stages of a pipeline, the first one first."""
    return [*(_in_order(last.first) if last.first is not None else []), last]


def _stage_summary(prepared: PreparedLaunch) -> list[tuple[str, str]]:
    offer = prepared.plan.choice
    group = prepared.record.groups[0]
    cost = offer.cost
    most = f"; at most ${prepared.budget_usd:.2f}" if prepared.budget_usd is not None else ""
    machines = f"{offer.nodes} x {offer.instance_type} ({offer.market}) in {group.zone}"
    return [
        (prepared.record.verb, f"{machines}, {price_text(prepared)}"),
        (
            "",
            f"{cost.hours:.1f} h (p90 {cost.hours_p90:.1f} h), ${cost.usd:.2f} (${cost.usd_p10:.2f} to ${cost.usd_p90:.2f}){most}",
        ),
        ("", f"{prepared.run}; AWS ends its machines at {group.kill_at}"),
    ]


def _budget_text(usd: float, cost: float) -> str:
    return f"${usd:.2f}{f', less than the ${cost:.2f} planned: the run will stop before it is spent, saved' if usd < cost else ''}"


def _sweep(request: LaunchRequest) -> ReadyJob:
    """Prepare machines that share a sweep."""
    planned = plan_sweep_launch(request.overrides, request.folders)
    prepared: list[PreparedLaunch] = []
    for job in planned.jobs:
        tell = quiet if prepared else request.tell
        prepared.append(prepare_launch(job, Preflight(job.composed.config, job.plan), tell))

    def start(reporter: Reporter) -> list[str]:
        start_launches(prepared, request.files(), reporter)
        kind = prepared[0].record.groups[0].instance_type
        return [f"launched {len(prepared)} x {kind} for sweep {planned.name}", LEFT_ALONE]

    return ReadyJob(
        name=planned.name,
        config=planned.jobs[0].composed.config,
        requests=render_calls([call for one in prepared for call in one.given(request.files()).calls]),
        summary=_sweep_summary(planned, prepared),
        start=start,
        session=prepared[0].session,
        usd_per_hour=sum(one.usd_per_hour for one in prepared),
        follows=False,
        next_arguments=NEXT,
        next_options=False,
    )


def _sweep_summary(planned: SweepLaunch, prepared: Sequence[PreparedLaunch]) -> list[tuple[str, str]]:
    offer = prepared[0].plan.choice
    first = prepared[0].record.groups[0]
    schedule = planned.schedule
    search = schedule.search_usd
    spent = f"${schedule.spent_usd:.2f} spent, " if schedule.spent_usd else ""
    kept = f"{spent}${schedule.final_usd:.2f} kept for the final run, ${search:.2f} to search"
    return [
        ("sweep", planned.name),
        ("machines", f"{len(prepared)} x {offer.instance_type} ({offer.market}) in {first.zone}"),
        ("price", price_text(*prepared)),
        ("budget", f"${schedule.budget_usd:.2f}: {kept}"),
        ("trials", f"{len(schedule.trials)} planned, ${sum(one.usd for one in schedule.trials):.2f} at most"),
        ("kill time", f"{first.kill_at}: AWS ends the machines then, with at most ${search:.2f} spent by them"),
        ("store", prepared[0].store.root),
    ]
