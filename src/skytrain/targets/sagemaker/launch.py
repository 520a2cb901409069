"""Launch on SageMaker: check what can be checked, upload packages and the start script, create the training job."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from ...aws import AwsSession, Call, CloudError, Tags, preview_container, pushed_image
from ...config import Composed, Config, plugin_targets
from ...planning import Market, Plan, load_catalog, timestamp
from ...runs import (
    LaunchedGroup,
    LaunchId,
    LaunchRecord,
    Reporter,
    ended_launch,
    inputs_folder,
    launches_of,
    next_launch,
    run_name,
)
from ...storage import Store, open_store
from ..bundle import Bundle, BundleContents, bundle_of, packed, sums_sha256, upload_bundle
from ..checks import Finding, Preflight, require
from ..jobs import job_extras, launch_record, node_command, scheduler_job_name
from ..lifecycle import Advance, LaunchSteps, run_launch
from ..limits import ask_account, check_alone, check_place, check_same, seconds_affordable
from ..machine_roles import MachineRole, machine_role, perform_with_role
from ..plans import PlannedJob, plan_file
from ..wheels import PLATFORMS, ImagePython
from .checks import training_job_checks
from .jobs import billed_usd, jobs_of, on_demand_usd, stop_job, training_job, training_price
from .requests import CONFIG, ENTRY, JobPlaces, SageMakerJobSpec, StartScript, check_settings

ON_DEMAND: Market = "on-demand"
NAME_TAKEN = "ResourceInUse"  # CreateTrainingJob's error for a name that a job has, or had


@dataclass(frozen=True)
class SageMakerLaunch:
    """A training job that has passed every check, before anything is created."""

    run: str
    plan: Plan
    record: LaunchRecord
    session: AwsSession
    store: Store
    contents: BundleContents
    bundle: Bundle
    script: StartScript
    job: SageMakerJobSpec
    role: MachineRole | None  # None: yours, or that of an older base
    usd_per_hour_each: float  # of one machine

    def given(self, files: Mapping[str, bytes]) -> SageMakerLaunch:
        """Return the launch with the hashes of what its containers are given, which they check before they use it."""
        script = replace(
            self.script,
            config_sha256=hashlib.sha256(packed(files)).hexdigest(),
            bundle_sha256=sums_sha256(self.store, self.bundle.key),
        )
        script_sha256 = hashlib.sha256(script.render().encode()).hexdigest()
        return replace(self, script=script, job=replace(self.job, script_sha256=script_sha256))

    @property
    def calls(self) -> list[Call]:
        """The requests in order."""
        return [*(self.role.calls if self.role else []), self.job.request()]

    @property
    def usd_per_hour(self) -> float:
        return self.job.offer.nodes * self.usd_per_hour_each

    @property
    def most_usd(self) -> float:
        """What the job costs if it runs until its limit."""
        return self.usd_per_hour * self.job.run_seconds / 3600


def prepare_sagemaker_launch(
    planned: PlannedJob, preflight: Preflight, tell: Callable[[Finding], None]
) -> SageMakerLaunch:
    """Check everything that can be checked, and make the request. Nothing is created.

    Raises SkytrainError with the exit code of the first problem: 3 preflight, 4 quota, 5 capacity, 11 credentials.
    """
    composed = planned.composed
    plan = planned.plan
    check_place(composed.config, plan)
    check_same(composed, plan)
    config = in_private_subnets(composed.config)
    config = with_preview_image(config) if preflight.preview else with_recorded_image(config)
    check_settings(config.cloud.sagemaker, plan.choice)  # before the account is asked
    preflight = replace(preflight, config=config)
    if not preflight.preview:
        require(training_job_checks(), preflight, tell)
    return _assembled(composed, plan, preflight)


def start_sagemaker_launch(launch: SageMakerLaunch, files: Mapping[str, bytes], reporter: Reporter) -> None:
    """Upload packages, configuration and start script, write the record, create the job."""

    def create(advance: Advance) -> object:
        given = launch.given(files)  # now that the bundle is in the store
        launch.store.write(f"{inputs_folder(launch.run, launch.record.id)}/{ENTRY}", given.script.render().encode())
        for call in given.calls:
            perform_with_role(launch.session, call, advance)
        return None

    def remove(error: BaseException) -> None:
        """Stop the job if it was created after all: the answer may have been lost."""
        for job in jobs_of(launch.session, [launch.record]):
            if not job.has_ended:
                launch.session.perform(stop_job(job.name))
        if launch.role is not None:
            launch.role.remove(launch.session, reporter.note)

    steps = LaunchSteps(
        store=launch.store,
        record=launch.record,
        create=create,
        remove=remove,
        may_have_created=lambda error: not (isinstance(error, CloudError) and error.code == NAME_TAKEN),
        upload=lambda reporter: upload_bundle(launch.store, launch.bundle, launch.contents, reporter),
        inputs={**plan_file(launch.plan), CONFIG: packed(files)},
    )
    run_launch(steps, reporter)


def with_recorded_image(config: Config) -> Config:
    """Return the settings; where they name no image, with the one that `skytrain image push` has recorded."""
    if config.cloud.sagemaker.image is not None:
        return config
    pushed = pushed_image(open_store(config.store))
    if pushed is None:
        return config
    return replace(config, cloud=replace(config.cloud, sagemaker=replace(config.cloud.sagemaker, image=pushed.uri)))


def with_preview_image(config: Config) -> Config:
    """Return the settings; where they name no image, with the one that `skytrain image push` would name."""
    image = config.cloud.sagemaker.image or preview_container(config.cloud)
    return replace(config, cloud=replace(config.cloud, sagemaker=replace(config.cloud.sagemaker, image=image)))


def in_private_subnets(config: Config) -> Config:
    """Return the settings with private subnets: SageMaker gives its machines no public addresses."""
    subnets = replace(config.cloud.subnets, nodes="private")
    return replace(config, cloud=replace(config.cloud, subnets=subnets))


def _assembled(composed: Composed, plan: Plan, preflight: Preflight) -> SageMakerLaunch:
    """Return the launch of an account that has passed the checks."""
    config = preflight.config
    session = preflight.session
    now = preflight.now
    wanted = preflight.config.cloud.sagemaker
    store = open_store(config.store)
    run = run_name(config)
    earlier = launches_of(store, run)
    check_alone(earlier, store, now, ask_account(session, store))
    python = ImagePython(wanted.python_version, PLATFORMS, {"torch": wanted.torch_version})
    targets = tuple(plugin_targets(composed.values))
    packages = tuple(config.cloud.packages)
    contents = BundleContents(job_extras(config, "train"), targets, packages, python)
    project = config.cloud.project
    assert project is not None
    bundle = bundle_of(contents)
    number = next_launch(earlier, ended_launch(store, run))
    if not preflight.preview:
        number = _free_number(session, project, run, int(number))
    folder = store.url(f"runs/{run}")
    places = JobPlaces(
        store.url(inputs_folder(run, number)),
        store.url(bundle.key),
        f"{folder}/launches/{number}/output",
        f"{folder}/tensorboard",
    )
    tags = Tags(project, config.cloud.owner or session.identity.name, run)
    job = SageMakerJobSpec(
        run=run, launch=number, offer=plan.choice, tags=tags, cloud=config.cloud, places=places, launched_at=now
    )
    job.request()  # settings that SageMaker refuses are told before prices are asked for
    usd = _preview_price(job) if preflight.preview else _price(session, job)
    billed = 0.0 if preflight.preview else billed_usd(session, earlier)
    most = seconds_affordable(config, store, run, usd * job.offer.nodes, billed_usd=billed)
    offer = replace(job.offer, kill_after_seconds=min(job.offer.kill_after_seconds, most))
    job = replace(job, offer=offer)
    role = None
    if wanted.role is None:
        own = replace(tags, expires_at=job.kill_at)
        role = machine_role(config.cloud, "train", number, own, service="sagemaker.amazonaws.com")
    if role is not None:
        job = replace(job, cloud=replace(job.cloud, roles=replace(job.cloud.roles, node=role.arn)))
    kill_at = timestamp(job.kill_at)
    group = LaunchedGroup(
        name=job.name,
        zone="",
        instance_type=offer.instance_type,
        market=offer.market,
        nodes=offer.nodes,
        usd_per_hour=usd,
        kill_at=kill_at,
        placement_group=False,
    )
    record = launch_record(composed, LaunchId(run, number), job.launched_at, [group], plan, session)
    record = replace(record, image=str(wanted.image), bundle=bundle.key)
    script = StartScript(
        run=run,
        command=node_command(
            composed.overrides,
            LaunchId(run, number),
            offer,
            nodes=offer.nodes,
            processes=max(1, offer.gpus_per_node),
            usd_per_hour=usd,
        ),
        python=wanted.python,
        root=wanted.root,
    )
    return SageMakerLaunch(
        run=run,
        plan=plan,
        record=record,
        session=session,
        store=store,
        contents=contents,
        bundle=bundle,
        script=script,
        job=job,
        role=role,
        usd_per_hour_each=usd,
    )


def _free_number(session: AwsSession, project: str, run: str, first: int) -> str:
    """Return the launch's number. A job of the same name may belong to a run in another store of the project."""
    while training_job(session, scheduler_job_name(project, run, f"{first:05d}")) is not None:
        first += 1
    return f"{first:05d}"


def _preview_price(job: SageMakerJobSpec) -> float:
    """Return what the packaged or refreshed catalogue says: SageMaker's price, or EC2's on demand, which is lower."""
    given = job.cloud.sagemaker.usd_per_hour
    if given is not None:
        return given
    price = training_price(load_catalog(), job.offer.instance_type, job.offer.region, ON_DEMAND)
    return price.usd_per_hour_max if price is not None else max(job.offer.usd_per_hour_each)


def _price(session: AwsSession, job: SageMakerJobSpec) -> float:
    given = job.cloud.sagemaker.usd_per_hour
    kind = f"ml.{job.offer.instance_type}"
    usd = given if given is not None else on_demand_usd(session, kind)
    if usd is None:
        raise CloudError(
            f"the Pricing API names no price for training on {kind} in {session.region}",
            fix="set cloud.sagemaker.usd_per_hour to what one machine costs",
        )
    return usd
