"""Launch on SageMaker: check what can be checked, upload packages and the start script, create the training job."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from ...aws import AwsSession, Call, CloudError, Tags, pushed_image
from ...config import Composed, Config, SkytrainError, plugin_targets
from ...planning import Plan, plan_document, timestamp
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
    run_name,
)
from ...storage import Store, open_store
from ..bundle import Bundle, BundleContents, bundle_of, make_bundle
from ..checks import Finding, Preflight, run_checks, sagemaker_checks
from ..ec2.launch import PlannedJob, packed
from ..jobs import job_extras, job_words, launch_record
from ..limits import ask_account, check_alone, check_place, check_same
from ..wheels import PLATFORMS, ImagePython
from .jobs import describe_job, jobs_of, on_demand_usd, stop_job
from .requests import JobPlaces, SageMakerJobSpec, check_settings, training_job_name
from .start_script import StartScript

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
    usd_per_hour_each: float  # of one machine

    @property
    def call(self) -> Call:
        return self.job.request()

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
    config = with_recorded_image(in_private_subnets(composed.config))
    check_settings(config.cloud.sagemaker, plan.choice)  # before the account is asked
    preflight = replace(preflight, config=config)
    for finding in run_checks(sagemaker_checks(), preflight):
        tell(finding)
        if finding.verdict == "failed":
            raise CloudError(finding.text, fix=finding.fix, cause=finding.cause, link=finding.link)
    return _assembled(composed, plan, preflight)


def start_sagemaker_launch(launch: SageMakerLaunch, config_files: Mapping[str, bytes], reporter: Reporter) -> None:
    """Upload packages, configuration and start script, write the record, create the job."""
    made = make_bundle(launch.store, launch.contents, reporter)
    assert made.key == launch.bundle.key
    folder = launch_folder(launch.record)
    create_launch(launch.store, launch.record)  # before anything else in its folder, which another launch may own
    try:
        launch.store.write(f"{folder}/sagemaker/start.sh", launch.script.render().encode())
        launch.store.write(f"{folder}/sagemaker/config.tar.gz", packed(config_files))
        launch.store.write(f"{folder}/plan.json", json.dumps(plan_document(launch.plan), indent=1).encode())
        launch.session.perform(launch.call)
    except BaseException as error:
        if not (isinstance(error, CloudError) and error.code == NAME_TAKEN):  # the job may be another's
            _remove(launch, reporter)
        raise


def _remove(launch: SageMakerLaunch, reporter: Reporter) -> None:
    """Stop the job if it was created after all: the answer may have been lost. Unless that is sure, the launch stays."""
    try:
        for job in jobs_of(launch.session, [launch.record]):
            if not job.has_ended:
                launch.session.perform(stop_job(job.name))
        mark_failed(launch.store, launch.record)
    except SkytrainError as error:  # what follows is why the launch failed
        reporter.note(f"warning: {error}\n  see: skytrain status {shlex.quote(launch.run)} cloud=sagemaker")


def with_recorded_image(config: Config) -> Config:
    """Where no image is named: the one that `skytrain image push` has recorded, if there is one."""
    if config.cloud.sagemaker.image is not None:
        return config
    found = pushed_image(open_store(config.store))
    if found is None:
        return config
    return replace(config, cloud=replace(config.cloud, sagemaker=replace(config.cloud.sagemaker, image=found.uri)))


def in_private_subnets(config: Config) -> Config:
    """SageMaker gives its machines no public addresses: they reach S3 from the private subnets."""
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
    number = _free_number(session, project, run, int(next_launch(earlier)))
    folder = store.url(f"runs/{run}")
    places = JobPlaces(
        f"{folder}/launches/{number}/sagemaker",
        store.url(bundle.key),
        f"{folder}/launches/{number}/output",
        f"{folder}/tensorboard",
    )
    tags = Tags(project, config.cloud.owner or session.identity.name, run)
    job = SageMakerJobSpec(
        run=run, launch=number, offer=plan.choice, tags=tags, cloud=config.cloud, places=places, launched_at=now
    )
    job.request()  # settings that SageMaker refuses are told before prices are asked for
    usd = _price(session, job)
    offer = job.offer
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
        requirements=bundle.requirements,
        command=_command(composed, job, usd),
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
        usd_per_hour_each=usd,
    )


def _free_number(session: AwsSession, project: str, run: str, first: int) -> str:
    """Return the launch's number. A job of the same name may belong to a run in another store of the project."""
    while describe_job(session, training_job_name(project, run, f"{first:05d}")) is not None:
        first += 1
    return f"{first:05d}"


def _price(session: AwsSession, job: SageMakerJobSpec) -> float:
    given = job.cloud.sagemaker.usd_per_hour
    kind = f"ml.{job.offer.instance_type}"
    found = given if given is not None else on_demand_usd(session, kind)
    if found is None:
        raise CloudError(
            f"the Pricing API names no price for training on {kind} in {session.region}",
            fix="set cloud.sagemaker.usd_per_hour to what one machine costs",
        )
    return found


def _command(composed: Composed, job: SageMakerJobSpec, usd: float) -> tuple[str, ...]:
    offer = job.offer
    return (
        "node", *composed.overrides, *job_words(offer, "train"), f"run={job.run}", f"budget.usd_per_hour={usd:.4f}",
        "--nodes", str(offer.nodes), "--processes", str(max(1, offer.gpus_per_node)), "--launch", job.launch,
    )  # fmt: skip
