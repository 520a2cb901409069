"""Launch: rent a plan's machines, which train on their own from then on; the terminal may close."""

from __future__ import annotations

import io
import json
import shlex
import tarfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path

from ...aws import PLAIN_PYTHON, AwsSession, Call, CloudError, MachineImage, Tags, quoted
from ...config import GROUPS, Composed, Config, plugin_targets
from ...planning import Plan, delayed_plan, plan_document, timestamp
from ...runs import (
    LaunchedGroup,
    LaunchId,
    LaunchRecord,
    Reporter,
    create_launch,
    launch_folder,
    launches_of,
    mark_failed,
    next_launch,
)
from ...storage import Store, StoreError, open_store
from ..bundle import Bundle, BundleContents, bundle_of, make_bundle
from ..checks import Finding, Preflight, launch_checks, run_checks
from ..jobs import job_config, job_extras, job_name, job_words, launch_record
from ..limits import ask_account, check_alone, check_place, check_regions, check_same
from ..wheels import PLATFORMS, UBUNTU_PLATFORMS, ImagePython
from .boot import BootScript
from .machines import removal_calls, remove_quietly
from .requests import GroupSpec, group_name, kill_time, launch_calls

BOOT_FAILURES_PER_NODE = 3  # after which the group is set to zero


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
    smoke: PreparedLaunch | None = None  # runs first; this one waits for it
    budget_usd: float | None = None

    @property
    def calls(self) -> list[Call]:
        """All requests, in order: groups that wait are there before those that they wait for."""
        own = launch_calls(self.groups, waits=self.record.after is not None)
        return [*own, *(self.smoke.calls if self.smoke else [])]

    @property
    def usd_per_hour(self) -> float:
        first = self.plan.choice
        return first.nodes * first.zones[0].usd_per_hour


@dataclass(frozen=True)
class PlannedJob:
    """A job as its user asked for it. A smoke run is another configuration with a plan of its own."""

    composed: Composed
    plan: Plan
    keep_seconds: float = 0.0  # for which machines stay after a failure
    options: tuple[str, ...] = ()  # of `skytrain node`: --from SEED


def prepare_launch(
    job: PlannedJob, preflight: Preflight, tell: Callable[[Finding], None], smoke: PlannedJob | None = None
) -> PreparedLaunch:
    """Check everything that can be checked, and make the requests. Nothing is created.

    With a smoke run, the job itself waits until that has ended well.
    Raises SkytrainError with the exit code of the first problem: 3 preflight, 4 quota, 5 capacity, 11 credentials.
    """
    plan = job.plan
    check_place(job.composed.config, plan)
    for each in (job, smoke):
        if each is not None:
            check_same(each.composed, each.plan)
    preflight = replace(preflight, config=job_config(job.composed.config, plan.job))
    for finding in run_checks(launch_checks(), preflight):
        tell(finding)
        if finding.verdict == "failed":
            raise CloudError(finding.text, fix=finding.fix, cause=finding.cause, link=finding.link)
    if smoke is None:
        return _assembled(job, preflight)
    first = _assembled(smoke, preflight)
    after = LaunchId(first.run, first.record.id)
    whole = _assembled(replace(job, plan=delayed_plan(plan, smoke.plan)), preflight, after)
    then = LaunchId(whole.run, whole.record.id)
    return replace(whole, smoke=replace(first, record=replace(first.record, then=then)))


def _assembled(job: PlannedJob, preflight: Preflight, after: LaunchId | None = None) -> PreparedLaunch:
    """Return one launch of an account that has passed the checks."""
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
    check_regions(run, config, session)
    plan = job.plan
    zones = preflight.subnets
    if (block := preflight.block) is not None:
        first = replace(plan.choice, kill_after_seconds=block.kill_after_seconds(plan.choice, now))
        plan, zones = replace(plan, offers=[first]), {block.zone: preflight.subnets[block.zone]}
    current = quoted(plan, session, zones, now)
    has = {"torch": image.torch_version} if image.torch_version else {}
    python = ImagePython(config.cloud.python_version, PLATFORMS, has)
    if kind == "serve":  # vLLM pins its own torch and much else: neither the image's nor the versions here fit it
        python = ImagePython(config.cloud.python_version, UBUNTU_PLATFORMS, {}, keeps_versions=False)
    targets = tuple(plugin_targets(job.composed.values))
    packages = tuple(config.cloud.packages)
    contents = BundleContents(job_extras(config, kind), targets, packages, python)
    bundle = bundle_of(contents)
    record = _record(job.composed, current, preflight, LaunchId(run, next_launch(earlier)))
    record = replace(record, bundle=bundle.key, after=after)
    draft = PreparedLaunch(
        run=run,
        plan=current,
        record=record,
        session=session,
        store=store,
        contents=contents,
        bundle=bundle,
        budget_usd=config.budget.usd,
    )
    groups = [_group(config, draft, number, image, job) for number in range(len(current.offers))]
    for call in launch_calls(groups):
        call.body()  # what cannot be requested is refused now, and not after the question and the upload
    return replace(draft, groups=tuple(groups))


def config_files(folders: Sequence[Path]) -> dict[str, bytes]:
    """Return the YAML files of the user's own groups, of several folders; the first folder wins."""
    found: dict[str, bytes] = {}
    for folder in folders:
        for group in GROUPS:
            for path in sorted((Path(folder) / group).glob("*.yaml")):
                found.setdefault(f"{group}/{path.name}", path.read_bytes())
    return found


def packed(files: Mapping[str, bytes]) -> bytes:
    """Return the files as .tar.gz, for machines to unpack."""
    body = io.BytesIO()
    with tarfile.open(fileobj=body, mode="w:gz") as archive:
        for name, data in sorted(files.items()):
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    return body.getvalue()


def start_launch(prepared: PreparedLaunch, config_files: Mapping[str, bytes], reporter: Reporter) -> LaunchRecord:
    """Upload packages and configuration, write the record, create the machines. A failure leaves nothing running.

    A smoke run comes last, when all that waits for it is there.
    """
    record = _start(replace(prepared, smoke=None), config_files, reporter)
    if prepared.smoke is not None:
        try:
            _start(prepared.smoke, config_files, reporter)
        except BaseException:
            _remove(prepared, reporter)
            raise
    return record


def _start(prepared: PreparedLaunch, config_files: Mapping[str, bytes], reporter: Reporter) -> LaunchRecord:
    record = prepared.record
    session = prepared.session
    store = prepared.store
    made = make_bundle(store, prepared.contents, reporter)
    assert made.key == prepared.bundle.key
    create_launch(store, record)  # before anything else in its folder, which another launch may own
    try:
        store.write(f"{launch_folder(record)}/config.tar.gz", packed(config_files))
        store.write(f"{launch_folder(record)}/plan.json", json.dumps(plan_document(prepared.plan), indent=1).encode())
        for call in prepared.calls:
            session.perform(call)
    except BaseException:
        reporter.note("the launch failed: removing what it had created")
        _remove(prepared, reporter)
        raise
    return record


def _remove(prepared: PreparedLaunch, reporter: Reporter) -> None:
    """Remove what a launch has created. With a group that is left it still counts as a launch that has machines."""
    left = [
        call
        for call in removal_calls(prepared.record)
        if not remove_quietly(prepared.session, call, reporter.note) and call.operation == "DeleteAutoScalingGroup"
    ]
    if left:
        run = shlex.quote(prepared.record.run)
        reporter.note(f"warning: machines of the launch may be left\n  end them: skytrain stop {run} cloud=ec2")
        return
    try:
        mark_failed(prepared.store, prepared.record)
    except StoreError as error:
        reporter.note(f"warning: {error}")  # what follows is why the launch failed


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
    command = (
        "node", *record.words, *job_words(offer, draft.plan.job), f"run={draft.run}",
        f"budget.usd_per_hour={record.groups[number].usd_per_hour:.4f}",
        *job.options, *(["--keep-on-failure", f"{job.keep_seconds:.0f}s"] if job.keep_seconds else []),
        "--nodes", str(offer.nodes), "--processes", str(max(1, offer.gpus_per_node)), "--launch", record.id,
    )  # fmt: skip
    boot = BootScript(
        region=draft.session.region,
        group=record.groups[number].name,
        bundle=store.url(draft.bundle.key),
        config=f"{folder}/config.tar.gz",
        failures=f"{folder}/boot-failures",
        python=config.cloud.python if image.torch_version else PLAIN_PYTHON,
        image_packages=image.torch_version is not None and draft.plan.job != "serve",
        requirements=draft.bundle.requirements,
        command=command,
        most_failures=BOOT_FAILURES_PER_NODE * offer.nodes,
        meeting=store.url(f"runs/{draft.run}/meeting"),
        usd_per_hour=record.groups[number].usd_per_hour,
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
