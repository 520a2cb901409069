"""Launch: rent a plan's machines, which train on their own from then on; the terminal may close."""

from __future__ import annotations

import hashlib
import math
import shlex
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

from ...aws import (
    AwsSession,
    Call,
    CloudError,
    MachineImage,
    Tags,
    is_preview,
    offered_zones,
    open_session,
    preview_image,
    remove_all,
    spot_prices,
)
from ...config import (
    Composed,
    Config,
    ConfigError,
    SkytrainError,
    batch_sizes,
    format_count,
    parse_count,
    plugin_targets,
    plural,
    total_steps,
)
from ...planning import (
    BOOT_SECONDS,
    Budget,
    CostForecast,
    Plan,
    PlannedOffer,
    PlanRequest,
    SmokeSettings,
    ZonePrice,
    delayed_plan,
    load_catalog,
    smoke_plan,
    timestamp,
)
from ...runs import (
    LaunchedGroup,
    LaunchId,
    LaunchRecord,
    Reporter,
    Silent,
    ended_launch,
    inputs_folder,
    launch_folder,
    launch_starts,
    launches_of,
    next_launch,
    run_name,
)
from ...storage import Store, open_store
from ...tuning import Schedule, machines_of_sweep, plan_sweep, sweep_name, sweep_spent_usd
from ..bundle import UNKNOWN_SHA256, Bundle, BundleContents, bundle_of, packed, sums_sha256, upload_bundle
from ..checks import Finding, Preflight, account_checks, planned_lines, require
from ..jobs import group_name, job_config, job_extras, job_name, launch_record, machine_run, node_command
from ..lifecycle import (
    Advance,
    LaunchSteps,
    MachinesLeft,
    described_groups,
    interrupted_once,
    roll_back,
    rollback_on_error,
    run_launch,
)
from ..limits import (
    LEAST_SECONDS,
    ask_account,
    check_alone,
    check_place,
    check_regions,
    check_same,
    count_launches,
    seconds_affordable,
)
from ..machine_roles import MachineRole, machine_role, perform_with_role
from ..plans import PlannedJob, Trials, compose_plan, plan_file, plan_run
from ..wheels import PLATFORMS, UBUNTU_PLATFORMS, ImagePython
from .boot import BootScript
from .machines import removal_calls
from .replacement import most_machines
from .requests import GroupSpec, kill_time, launch_calls

DELETE_GROUP = "DeleteAutoScalingGroup"
CONFIG = "config.tar.gz"
SMOKE_SUFFIX = "-smoke"  # of a smoke run's name
START_SECONDS = 180.0  # in which the last act of a smoke run starts the run
POLL_SECONDS = 5.0


@dataclass(frozen=True)
class PreparedLaunch:
    """All that a launch will do, before anything is created."""

    run: str
    plan: Plan  # with current prices
    record: LaunchRecord
    session: AwsSession
    store: Store
    contents: BundleContents
    bundle: Bundle
    groups: tuple[GroupSpec, ...] = ()
    role: MachineRole | None = None  # None: machines share the role of an older base
    first: PreparedLaunch | None = None  # a smoke run or a stage; this one waits for it
    budget_usd: float | None = None
    waits_seconds: float = 0.0  # at most, for what comes first: its kill times are later by so much

    @property
    def calls(self) -> list[Call]:
        """All requests, in order: groups that wait are there before those that they wait for."""
        role = self.role.calls if self.role else []
        own = launch_calls(self.groups, waits=self.record.after is not None)
        return [*role, *own, *(self.first.calls if self.first else [])]

    @property
    def runs(self) -> list[str]:
        """The runs of the launch and of all that it waits for: their machines start, end and count each other."""
        return [*(self.first.runs if self.first else []), self.run]

    def joined(self, runs: Sequence[str]) -> PreparedLaunch:
        """Return the launch with roles that also write these runs."""
        role = self.role
        if role is not None:
            others = dict.fromkeys([*role.joined, *(run for run in runs if run != self.run)])
            role = replace(role, joined=tuple(others))
        return replace(self, role=role, first=self.first.joined(runs) if self.first else None)

    def given(self, files: Mapping[str, bytes]) -> PreparedLaunch:
        """Return the launch with the hashes of what its machines are given, which they check before they unpack it."""
        config = hashlib.sha256(packed(files)).hexdigest()
        bundle = sums_sha256(self.store, self.bundle.key)
        groups = tuple(
            replace(group, boot=replace(group.boot, config_sha256=config, bundle_sha256=bundle))
            for group in self.groups
        )
        return replace(self, groups=groups, first=self.first.given(files) if self.first else None)

    @property
    def usd_per_hour(self) -> float:
        first = self.plan.choice
        return first.nodes * first.zones[0].usd_per_hour


def price_text(*together: PreparedLaunch) -> str:
    """Return the price of launches, each in its zone, and those that their plans' dollars are made of: zones differ."""
    offers = [prepared.plan.choice for prepared in together]
    low, high = (f"${sum(offer.nodes * offer.usd_per_hour_each[end] for offer in offers):.2f}" for end in (0, 1))
    planned = low if low == high else f"{low} to {high}"
    if is_preview(together[0].groups[0].cloud):
        return f"{planned} an hour{'' if low == high else ', by zone'}"
    now = f"${sum(prepared.usd_per_hour for prepared in together):.2f}"
    return f"{now} an hour{'' if planned == now else f' (planned with {planned})'}"


def prepare_launch(
    job: PlannedJob, preflight: Preflight, tell: Callable[[Finding], None], smoke: PlannedJob | None = None
) -> PreparedLaunch:
    """Check everything that can be checked, and make the requests. Nothing is created.

    With a smoke run, the job itself waits until that has ended well.
    Raises SkytrainError with the exit code of the first problem: 3 preflight, 4 quota, 5 capacity, 11 credentials.
    """
    if smoke is not None:
        check_same(smoke.composed, smoke.plan)
    preflight = _checked(job, preflight, tell)
    if smoke is None:
        return _assembled(job, preflight)
    whole = _waiting(job, preflight, _assembled(smoke, preflight))
    return whole.joined(whole.runs)


def prepare_stages(jobs: Sequence[PlannedJob], tell: Callable[[Finding], None]) -> PreparedLaunch:
    """Check the stages of a pipeline, each of which starts when the one before has ended well; return the last one.

    Its `first` is the stage that it waits for. Nothing is created.
    """
    stage: PreparedLaunch | None = None
    for job in jobs:
        # The account is the same for all: it is told once, and a failure of a later one is raised all the same.
        preflight = _checked(job, Preflight(job.composed.config, job.plan), tell if stage is None else quiet)
        stage = _assembled(job, preflight) if stage is None else _waiting(job, preflight, stage)
    assert stage is not None
    return stage.joined(stage.runs)


def quiet(finding: Finding) -> None:
    """Show nothing."""
    return


def _checked(job: PlannedJob, preflight: Preflight, tell: Callable[[Finding], None]) -> Preflight:
    """Return what the checks have found out about the account; the first problem is raised."""
    check_place(job.composed.config, job.plan)
    check_same(job.composed, job.plan)
    preflight = replace(preflight, config=job_config(job.composed.config, job.plan.job))
    if preflight.preview:
        return replace(preflight, image=preview_image(planned_lines(job.plan)[0]))
    require(account_checks(), preflight, tell)
    return preflight


def _waiting(job: PlannedJob, preflight: Preflight, first: PreparedLaunch) -> PreparedLaunch:
    """Return the launch that starts when `first` has ended well. Its kill times are later by the latest of that one."""
    waits = max(offer.kill_after_seconds for offer in first.plan.offers)
    after = LaunchId(first.run, first.record.id)
    whole = _assembled(replace(job, plan=delayed_plan(job.plan, first.plan)), preflight, after, waits)
    then = LaunchId(whole.run, whole.record.id)
    return replace(whole, first=replace(first, record=replace(first.record, then=then)))


def _assembled(
    job: PlannedJob, preflight: Preflight, after: LaunchId | None = None, waits_seconds: float = 0.0
) -> PreparedLaunch:
    """Return one launch of an account that has passed the checks. It waits for the one `after` so many seconds at most."""
    kind = job.plan.job
    session = preflight.session
    image = preflight.image
    now = preflight.now
    config = job_config(job.composed.config, kind)
    store = open_store(preflight.config.store)
    assert image is not None
    run = job_name(config, kind)
    earlier = launches_of(store, run)
    check_alone(earlier, store, now, ask_account(session, store))
    if not preflight.preview:
        check_regions(run, config, session)
    count_launches(session, store, earlier, Silent().note)
    plan = job.plan
    zones = preflight.subnets
    if (block := preflight.block) is not None:
        first = replace(plan.choice, kill_after_seconds=block.kill_after_seconds(plan.choice, now))
        plan, zones = replace(plan, offers=[first]), {block.zone: preflight.subnets[block.zone]}
    if preflight.preview:
        current = with_planned_prices(plan, zones)
    else:
        current = with_current_prices(plan, session, zones, now)
    if kind in ("train", "prepare", "finish"):  # an endpoint is rented for hours, and a sweep has a ledger
        current = _within_budget(current, config, store, run, waits_seconds)
    has = {"torch": image.line.torch_version} if image.line.torch_version else {}
    python = ImagePython(_python_version(config, image), PLATFORMS, has)
    if kind == "serve":  # vLLM pins its own torch and much else: neither the image's nor the versions here fit it
        python = ImagePython(_python_version(config, image), UBUNTU_PLATFORMS, {}, keeps_versions=False)
    targets = tuple(plugin_targets(job.composed.values))
    packages = tuple(config.cloud.packages)
    contents = BundleContents(job_extras(config, kind), targets, packages, python)
    bundle = bundle_of(contents)
    record = _record(job.composed, current, preflight, LaunchId(run, next_launch(earlier, ended_launch(store, run))))
    record = replace(record, bundle=bundle.key, after=after)
    if not preflight.preview:
        check_names(session, record)
    assert config.cloud.project is not None
    tags = Tags(config.cloud.project, config.cloud.owner or session.identity.name, run, record.over_at)
    role = machine_role(
        config.cloud,
        kind,
        record.id,
        tags,
        joined=[run_name(config)] if kind == "finish" else [],
        sweep=sweep_name(config) if kind == "tune" else None,
    )
    if role is not None:
        config = replace(config, cloud=replace(config.cloud, instance_profile=role.name))
    draft = PreparedLaunch(
        run=run,
        plan=current,
        record=record,
        session=session,
        store=store,
        contents=contents,
        bundle=bundle,
        role=role,
        budget_usd=config.budget.usd,
        waits_seconds=waits_seconds,
    )
    prepared = replace(
        draft, groups=tuple(_group(config, draft, number, image, job) for number in range(len(current.offers)))
    )
    for call in prepared.calls:
        call.body()  # what cannot be requested is refused now, and not after the question and the upload
    return prepared


def with_current_prices(plan: Plan, session: AwsSession, zones: Iterable[str], now: datetime) -> Plan:
    """Return the plan with current zone prices, cheapest first, without offers that cannot be had at its prices.

    `zones` are those with a subnet. Raises CloudError (exit 5) if the first offer is among them.
    """
    ours = sorted(zones)
    offers = [replace(offer, zones=_zone_prices(offer, session, ours, now)) for offer in plan.offers]
    if not offers[0].zones:
        first = offers[0]
        raise CloudError(
            f"{first.instance_type} ({first.market}) is not sold in {', '.join(ours)} for "
            f"${first.max_usd_per_hour_each:.4f} an hour or less, the most that the plan accepts",
            fix="prices have moved: skytrain catalog refresh, then plan again (or add --replan)",
            cause="capacity",
        )
    return replace(plan, offers=[offer for offer in offers if offer.zones])


def with_planned_prices(plan: Plan, zones: Iterable[str]) -> Plan:
    """Return the plan with its own prices in each of these zones: AWS is not asked."""
    ours = sorted(zones)
    return replace(
        plan,
        offers=[
            replace(offer, zones=[ZonePrice(zone, min(offer.usd_per_hour_each), plan.made_at) for zone in ours])
            for offer in plan.offers
        ],
    )


def _zone_prices(offer: PlannedOffer, session: AwsSession, zones: list[str], now: datetime) -> list[ZonePrice]:
    sold = [zone for zone in offered_zones(session, offer.instance_type) if zone in zones]
    if offer.market == "spot":
        prices = spot_prices(session, offer.instance_type, sold, now)
    else:
        least = load_catalog().least_usd_per_hour(offer.instance_type, offer.region, "on-demand")
        prices = dict.fromkeys(sold, max(least, *offer.usd_per_hour_each))
    return [
        ZonePrice(zone, usd, timestamp(now))
        for zone, usd in sorted(prices.items(), key=lambda pair: (pair[1], pair[0]))
        if usd <= offer.max_usd_per_hour_each
    ]


def check_names(session: AwsSession, record: LaunchRecord) -> None:
    """Raise if the account has groups of these names, which are not of this launch: a rollback would end their machines."""
    named = {"AutoScalingGroupNames": [group.name for group in record.groups]}
    for group in session.items(Call("autoscaling", "DescribeAutoScalingGroups", named), "AutoScalingGroups"):
        run = shlex.quote(record.run)
        raise SkytrainError(
            f"the account has {group['AutoScalingGroupName']} already, and this store has no record of it: run {run} "
            f"was launched with another store, or its records were deleted\n"
            f"  choose another name: run=NAME; or end that one, whatever it does: skytrain gc --run {run} --delete cloud=ec2"
        )


def _within_budget(plan: Plan, config: Config, store: Store, run: str, waits_seconds: float) -> Plan:
    """Return the plan with kill times that what is left of the budget can pay for, whatever the plan was made with."""
    offers = []
    for offer in plan.offers:
        most = waits_seconds + seconds_affordable(config, store, run, offer.nodes * offer.zones[0].usd_per_hour)
        offers.append(replace(offer, kill_after_seconds=min(offer.kill_after_seconds, most)))
    return replace(plan, offers=offers)


def start_launch(prepared: PreparedLaunch, files: Mapping[str, bytes], reporter: Reporter) -> LaunchRecord:
    """Upload packages and configuration, write the record, create the machines. A failure leaves nothing running.

    What it waits for comes last, when all that waits is there.
    """
    whole = _steps(replace(prepared, first=None), files, reporter)
    with interrupted_once(reporter):
        run_launch(whole, reporter)
        if prepared.first is not None:
            with rollback_on_error(lambda error: roll_back(whole, error, reporter)):
                start_launch(prepared.first, files, reporter)
    return prepared.record


def start_launches(prepared: Sequence[PreparedLaunch], files: Mapping[str, bytes], reporter: Reporter) -> None:
    """Start launches that belong together, such as the machines of a sweep: all of them, or none."""
    started: list[PreparedLaunch] = []

    def undo(error: BaseException) -> None:
        for one in started:
            roll_back(_steps(one, files, reporter), error, reporter)

    with interrupted_once(reporter), rollback_on_error(undo):
        for one in prepared:
            start_launch(one, files, reporter)
            started.append(one)


def _steps(prepared: PreparedLaunch, files: Mapping[str, bytes], reporter: Reporter) -> LaunchSteps[None]:
    record = prepared.record
    session = prepared.session
    store = prepared.store

    def create(advance: Advance) -> None:
        given = prepared.given(files)  # now that the bundle is in the store
        for call in given.calls:
            perform_with_role(session, call, advance)

    def remove(error: BaseException) -> None:
        """Remove what was created. With a group that is left it still counts as a launch that has machines."""
        calls = [(session.region, call) for call in removal_calls(record)]
        left = [call for _, call in remove_all(session, calls, reporter.note) if call.operation == DELETE_GROUP]
        if prepared.role is not None and not left:
            prepared.role.remove(session, reporter.note)
        if left:
            names = {call.parameters["AutoScalingGroupName"] for call in left}
            kept = replace(record, groups=[group for group in record.groups if group.name in names])
            end = f"skytrain stop {shlex.quote(record.run)} cloud=ec2"
            raise MachinesLeft(f"machines of the launch may be left: {described_groups(kept)}\n  end them: {end}")

    def still_alone() -> None:
        earlier = [one for one in launches_of(store, record.run) if one.id < record.id]
        check_alone(earlier, store, datetime.now(UTC), ask_account(session, store))
        check_names(session, record)

    return LaunchSteps(
        store=store,
        record=record,
        create=create,
        remove=remove,
        check_alone=still_alone,
        upload=lambda reporter: upload_bundle(prepared.store, prepared.bundle, prepared.contents, reporter),
        inputs={**plan_file(prepared.plan), CONFIG: packed(files)},
    )


def _record(composed: Composed, plan: Plan, preflight: Preflight, launch: LaunchId) -> LaunchRecord:
    project = composed.config.cloud.project
    image = preflight.image
    now = preflight.now
    assert project is not None and image is not None
    groups = [
        LaunchedGroup(
            name=group_name(project, launch.run, launch.launch, number),
            zone=offer.zones[0].zone,
            instance_type=offer.instance_type,
            market=offer.market,
            nodes=offer.nodes,
            usd_per_hour=offer.zones[0].usd_per_hour,
            kill_at=timestamp(kill_time(now, offer)),
            placement_group=offer.placement_group,
        )
        for number, offer in enumerate(plan.offers)
    ]
    return replace(launch_record(composed, launch, now, groups, plan, preflight.session), image=image.id)


def _group(config: Config, draft: PreparedLaunch, number: int, image: MachineImage, job: PlannedJob) -> GroupSpec:
    offer = draft.plan.offers[number]
    record = draft.record
    store = draft.store
    folder = store.url(launch_folder(record))
    keep = ["--keep-on-failure", f"{job.keep_seconds:.0f}s"] if job.keep_seconds else []
    command = node_command(
        record.words,
        LaunchId(draft.run, record.id),
        offer,
        job=draft.plan.job,
        nodes=offer.nodes,
        processes=max(1, offer.gpus_per_node),
        usd_per_hour=record.groups[number].usd_per_hour,
        options=(*job.options, *keep),
    )
    boot = BootScript(
        region=draft.session.region,
        group=record.groups[number].name,
        bundle=store.url(draft.bundle.key),
        bundle_sha256=UNKNOWN_SHA256,
        config=store.url(f"{inputs_folder(draft.run, record.id)}/{CONFIG}"),
        config_sha256=UNKNOWN_SHA256,
        failures=f"{folder}/boot-failures",
        python=(config.cloud.python if image.line.torch_version else None) or image.line.python,
        python_version=_python_version(config, image),
        image=image.id,
        image_packages=image.line.torch_version is not None and draft.plan.job != "serve",
        command=command,
        most_machines=most_machines(offer.nodes),
        meeting=store.url(f"runs/{draft.run}/meeting"),
        usd_per_hour=record.groups[number].usd_per_hour,
        lasts_seconds=offer.kill_after_seconds - draft.waits_seconds,
    )
    project = config.cloud.project
    assert project is not None
    tags = Tags(project, config.cloud.owner or draft.session.identity.name, draft.run)
    at = datetime.fromisoformat(record.launched_at)
    return GroupSpec(
        run=draft.run,
        launch=record.id,
        number=number,
        offer=offer,
        zone=offer.zones[0].zone,
        image=image,
        boot=boot,
        tags=tags,
        cloud=config.cloud,
        launched_at=at,
    )


def _python_version(config: Config, image: MachineImage) -> str:
    return config.cloud.python_version or image.line.python_version


def smoke_job(job: PlannedJob, tokens: str, compose: Callable[[Sequence[str]], Composed]) -> PlannedJob:
    """Return the smoke run of a job: its first steps, under a name of its own. `compose` makes its configuration."""
    config = job.composed.config
    if job.plan.job != "train":
        raise SkytrainError("--smoke: only training has a smoke run\n  leave it out")
    try:
        wanted = parse_count(tokens)
    except ValueError as error:
        raise SkytrainError(f"--smoke {tokens}: {error}\n  for example: --smoke 20M") from None
    batches = batch_sizes(config.trainer)
    steps = batches.steps_in(wanted - 1) + 1
    whole = min(total_steps(config), config.trainer.stop_at_step or total_steps(config))
    if not 0 < steps < whole:
        raise SkytrainError(
            f"--smoke {tokens}: that is {steps} of the run's {whole} steps\n"
            f"  give fewer tokens than {format_count(batches.before(whole))}, and more than 0"
        )
    name = f"{run_name(config)}{SMOKE_SUFFIX}"
    composed = compose([*job.composed.overrides, f"run={name}", f"trainer.stop_at_step={steps}"])
    settings = SmokeSettings(steps, composed.values, composed.overrides)
    return PlannedJob(composed, smoke_plan(job.plan, settings), job.keep_seconds)


def smoke_text(prepared: PreparedLaunch) -> str:
    """Describe what a smoke run costs, for people, before they agree."""
    assert prepared.first is not None
    offer = prepared.first.plan.choice
    record = prepared.first.record
    most = offer.nodes * offer.max_usd_per_hour_each * offer.kill_after_seconds / 3600
    return (
        f"{record.run} first, {offer.cost.hours:.1f} h, ${offer.cost.usd:.2f} (at most ${most:.2f}) in addition; "
        f"{prepared.run} starts only if it ends well"
    )


def wait_for_start(store: Store, record: LaunchRecord, wait: Callable[[float], None] = time.sleep) -> bool:
    """Wait until the machines of a smoke run or a stage have started what waits for it; False if they do not."""
    for _ in range(math.ceil(START_SECONDS / POLL_SECONDS)):
        starts = launch_starts(store, record)
        if starts is not None:
            return starts
        wait(POLL_SECONDS)
    return False


@dataclass(frozen=True)
class SweepLaunch:
    """A sweep, and the machines that are to run its trials."""

    name: str
    schedule: Schedule
    jobs: tuple[PlannedJob, ...]


def plan_sweep_launch(overrides: Sequence[str], folders: Sequence[Path]) -> SweepLaunch:
    """Plan the machines of a sweep. Raises BudgetError where the budget buys no search."""
    composed, open_mesh = compose_plan(overrides, folders, None)
    config = composed.config
    if config.tune.instance is None:
        raise ConfigError("tune.instance", "is not set", hint="the machine for the trials, such as g5.xlarge")
    schedule = plan_sweep(config, Silent())
    request = PlanRequest(None, region=config.cloud.region, instance=config.tune.instance, nodes=1)
    with tempfile.TemporaryDirectory() as folder:
        planned = plan_run(composed, open_mesh, request, Trials(0, 1), Path(folder) / "plan.json")
    if planned.plan is None:
        raise planned.refusal or SkytrainError("no plan was found")
    # The name is a hash of the settings, and machines get more of them: so it is given to them.
    more = [f"tune.name={sweep_name(config)}"]
    if not any(word.startswith("tune.parallel=") for word in overrides):
        more.append(f"tune.parallel={max(1, planned.plan.choice.gpus_per_node)}")
    composed, _ = compose_plan([*overrides, *more], folders, None)
    name = sweep_name(composed.config)
    schedule = replace(schedule, spent_usd=0.0 if is_preview(config.cloud) else _sweep_spent_usd(config, name))
    plan = sweep_plan(
        replace(planned.plan, config=dict(composed.values), words=list(composed.overrides)), schedule, composed
    )
    jobs = [
        PlannedJob(replace(composed, config=replace(composed.config, run=machine_run(name, number))), plan)
        for number in range(1, config.tune.machines + 1)
    ]
    return SweepLaunch(name, schedule, tuple(jobs))


def _sweep_spent_usd(config: Config, name: str) -> float:
    """Return what a sweep has cost, machines that recorded nothing included, as far as AWS still knows them."""
    store = open_store(config.store)
    earlier = [record for run in machines_of_sweep(store, name) for record in launches_of(store, run)]
    if earlier:
        session = open_session(config.cloud.region, config.cloud.account)
        count_launches(session, store, earlier, Silent().note)
    return sweep_spent_usd(store, name)


def sweep_plan(plan: Plan, schedule: Schedule, composed: Composed) -> Plan:
    """Return the plan of one machine of the sweep. AWS ends it when its share of what is left to search is spent.

    Raises SkytrainError where so little is left that machines would end while they boot.
    """
    machines = composed.config.tune.machines
    share = schedule.search_usd / machines
    name = sweep_name(composed.config)
    for offer in plan.offers:
        if share / max(offer.usd_per_hour_each) * 3600 < LEAST_SECONDS:
            raise SkytrainError(
                f"budget.usd={schedule.budget_usd:g}: sweep {name} has cost ${schedule.spent_usd:.2f} already, and "
                f"${schedule.final_usd:.2f} are kept for the final run: what is left rents no {plural(machines, 'machine')}\n"
                "  raise budget.usd, which is for the whole sweep, or choose another name: tune.name=NAME"
            )
    offers = [_offer(offer, share, schedule, machines) for offer in plan.offers]
    why = f"{plan.choice.instance_type} for the trials of {name}"
    return replace(plan, offers=offers, job="tune", why=why, budget_usd=schedule.budget_usd)


def _offer(offer: PlannedOffer, share_usd: float, schedule: Schedule, machines: int) -> PlannedOffer:
    price = max(offer.usd_per_hour_each)
    boot = sum(BOOT_SECONDS) / 2 / 3600
    hours = sum(one.usd for one in schedule.trials) / price / machines + boot
    most = Budget(share_usd).hours_at(offer.max_usd_per_hour_each)
    usd = min(share_usd, hours * price)
    cost = CostForecast(
        hours=hours,
        hours_p90=max(hours, most),
        usd=usd,
        usd_p10=usd / 2,
        usd_p90=share_usd,
        interruptions=0.0,
        parts_usd={"machine": usd},
    )
    quota = replace(offer.quota, vcpus=offer.quota.vcpus * machines)  # of all machines together
    return replace(offer, nodes=1, cost=cost, quota=quota, kill_after_seconds=most * 3600)
