"""Launch on EMR: check what can be checked, upload the packed environment, start the Spark job that prepares data."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from ...aws import AwsSession, Call, Tags, offered_zones
from ...config import Composed, Config, SkytrainError, make, plugin_targets
from ...planning import (
    Budget,
    PreparationOption,
    corpus_work,
    load_catalog,
    timestamp,
)
from ...runs import LaunchedGroup, LaunchId, LaunchRecord, Reporter, inputs_folder, launches_of, next_launch, spent_usd
from ...storage import Store, open_store
from ...tokens import has_tokens
from ..bundle import BundleContents, packed
from ..checks import Finding, Preflight, require
from ..jobs import job_extras, job_name, launch_record, prepare_work
from ..lifecycle import Advance, LaunchSteps, run_launch
from ..limits import ask_account, check_alone, refuse_endpoint_names
from ..machine_roles import EC2, MachineRole, machine_role, perform_with_role
from ..wheels import PLATFORMS, ImagePython
from . import NAMES
from .checks import spark_job_checks
from .costs import cluster_offer, cluster_price, serverless_offer, serverless_usd_per_hour
from .environment import ENTRY, SPARK_PYTHON, PackedEnvironment, environment_of, pack_environment, packed_sha256
from .jobs import SERVERLESS, emr_costs, emr_jobs_of, emr_log_folder, stop_emr_job
from .requests import (
    BOOTSTRAP,
    START_SECONDS,
    EmrJobSpec,
    EmrPlaces,
    cluster_call,
    cluster_subnet,
    create_application,
    serverless_calls,
    start_job_run,
    submit_script,
)

# what a cluster reads from the folder of the launch's inputs
SCRIPT = "bootstrap.sh"
FILES = "launch.tar.gz"


@dataclass(frozen=True)
class EmrLaunch:
    """A job that has passed every check, before anything is created."""

    run: str
    record: LaunchRecord
    session: AwsSession
    store: Store
    contents: BundleContents
    environment: PackedEnvironment
    job: EmrJobSpec
    role: MachineRole | None  # None: that of an older base
    subnet: str  # of a cluster
    estimate: PreparationOption
    usd_per_hour: float  # with all executors or nodes
    documents_assumed: bool

    @property
    def serverless(self) -> bool:
        return self.record.target == SERVERLESS

    def calls(self, files: Mapping[str, bytes]) -> list[Call]:
        """Return the requests in order. The last of EMR Serverless names the application that the one before creates."""
        role = self.role.calls if self.role else []
        if self.serverless:
            return [*role, *serverless_calls(self.job)]
        url = self.store.url(inputs_folder(self.run, self.record.id))
        given = (
            packed_sha256(self.store, self.environment),
            hashlib.sha256(_inputs(self, files)[FILES]).hexdigest(),
        )
        return [*role, cluster_call(self.job, self.subnet, f"{url}/{SCRIPT}", f"{url}/{FILES}", given)]

    @property
    def most_usd(self) -> float:
        """What the job costs if every attempt runs until its limit; a cluster's machines also start and wait."""
        seconds = self.job.attempts * self.job.timeout_seconds if self.serverless else self.job.most_seconds
        return self.usd_per_hour * seconds / 3600


def prepare_emr_launch(
    composed: Composed, preflight: Preflight, documents: float | None, tell: Callable[[Finding], None]
) -> EmrLaunch:
    """Check everything that can be checked, and make the requests. Nothing is created.

    Raises SkytrainError with the exit code of the first problem: 2 usage, 3 preflight, 4 quota, 5 capacity,
    11 credentials.
    """
    config = composed.config
    _check_place(config)
    launch = _assembled(composed, preflight, documents)
    launch.calls({})  # what EMR refuses is told now
    if preflight.preview:
        return launch
    require(spark_job_checks(), preflight, tell)
    earlier = launches_of(launch.store, launch.run)
    check_alone(earlier, launch.store, preflight.now, ask_account(launch.session, launch.store))
    if launch.serverless:
        return launch
    wanted = config.cloud.emr
    types = {wanted.primary, wanted.core, *([wanted.task] if wanted.task_nodes else [])}
    sold = {kind: set(offered_zones(launch.session, kind)) for kind in types}
    return replace(launch, subnet=cluster_subnet(launch.job, sold))


def start_emr_launch(launch: EmrLaunch, files: Mapping[str, bytes], reporter: Reporter) -> None:
    """Upload packages and configuration, write the record, start the job. A failure leaves nothing running."""

    def upload(reporter: Reporter) -> None:
        made = pack_environment(launch.store, launch.contents, reporter)
        assert made == launch.environment

    def create(advance: Advance) -> None:
        if launch.serverless:
            calls = [*(launch.role.calls if launch.role else []), create_application(launch.job)]
        else:
            calls = launch.calls(files)
        answers = [perform_with_role(launch.session, call, advance) for call in calls]
        if launch.serverless:
            perform_with_role(launch.session, start_job_run(launch.job, answers[-1]["applicationId"]), advance)

    def remove(error: BaseException) -> None:
        """Stop the job if it was started after all: the answer may have been lost."""
        for job in emr_jobs_of(launch.session, [launch.record]):
            if not job.has_ended:
                launch.session.perform(stop_emr_job(job))
        if launch.role is not None:
            launch.role.remove(launch.session, reporter.note)

    steps = LaunchSteps(
        store=launch.store,
        record=launch.record,
        create=create,
        remove=remove,
        upload=upload,
        inputs=_inputs(launch, files),
    )
    run_launch(steps, reporter)


def _inputs(launch: EmrLaunch, files: Mapping[str, bytes]) -> dict[str, bytes]:
    """Return what the job reads from the store besides its packages."""
    if launch.serverless:
        return {"prepare.py": ENTRY.encode(), "config.tar.gz": packed(files)}
    own = {"prepare.py": ENTRY.encode(), "submit.sh": submit_script(launch.job).encode()}
    return {SCRIPT: BOOTSTRAP.encode(), FILES: packed({**files, **own})}


def _check_place(config: Config) -> None:
    if config.cloud.project is None or config.cloud.region is None:
        raise SkytrainError("no account is set up\n  run: skytrain cloud init (docs/aws.md)")
    if not config.store.root.startswith("s3://"):
        raise SkytrainError(
            f"store.root={config.store.root}: EMR reaches only a bucket\n"
            f"  cloud={config.cloud.target} takes the account's bucket; copy data there first: skytrain store copy"
        )
    refuse_endpoint_names(config, "prepare")
    if config.spark.master is not None:
        raise SkytrainError(f"spark.master={config.spark.master}: EMR decides where Spark runs\n  leave it out")
    if has_tokens(make(config.data.source.target, config.data.source.args, key="data.source")):
        raise SkytrainError(
            f"data={config.data.name} has no documents, and Spark prepares only those\n"
            "  skytrain launch prepare cloud=ec2, or skytrain prepare engine=local"
        )
    if config.budget.usd == 0:
        raise SkytrainError("budget.usd=0: EMR costs money\n  raise budget.usd")


def _assembled(composed: Composed, preflight: Preflight, documents: float | None) -> EmrLaunch:
    config = composed.config
    session = preflight.session
    store = open_store(config.store)
    run = job_name(config, "prepare")
    target = config.cloud.target
    earlier = launches_of(store, run)
    number = next_launch(earlier)
    work = corpus_work(prepare_work(config), documents)
    assert config.cloud.region is not None and config.cloud.project is not None and target is not None
    image = ImagePython(SPARK_PYTHON, PLATFORMS, {})
    targets = tuple(plugin_targets(composed.values))
    packages = tuple(config.cloud.packages)
    contents = BundleContents(job_extras(config, "prepare"), targets, packages, image)
    environment = environment_of(contents)
    executors = _executors(config)
    wanted = config.cloud.emr
    region = config.cloud.region
    catalog = load_catalog()
    if target == SERVERLESS:
        usd = serverless_usd_per_hour(wanted, executors, region)
        estimate = serverless_offer(work, wanted, region)
    else:
        usd = cluster_price(wanted, catalog, region).usd
        estimate = cluster_offer(work, wanted, catalog, region)
    inputs = store.url(inputs_folder(run, number))
    places = EmrPlaces(
        environment=store.url(environment.key),
        entry=f"{inputs}/prepare.py",
        config=f"{inputs}/config.tar.gz",
        logs=f"{store.url(f'runs/{run}/launches/{number}')}/logs/",
    )
    tags = Tags(config.cloud.project, config.cloud.owner or session.identity.name, run)
    timeout = _timeout(config, usd, 0.0 if preflight.preview else _spent_usd(preflight, store, run, earlier))
    job = EmrJobSpec(
        run=run,
        launch=number,
        overrides=tuple(composed.overrides),
        tags=tags,
        cloud=config.cloud,
        places=places,
        launched_at=preflight.now,
        timeout_seconds=timeout,
        executors=executors,
    )
    service = "emr-serverless.amazonaws.com" if target == SERVERLESS else EC2
    role = machine_role(config.cloud, "prepare", number, job.own_tags, service=service)
    if role is not None:
        own = replace(config.cloud, prepare_profile=role.name, roles=replace(config.cloud.roles, prepare=role.arn))
        job = replace(job, cloud=own)
    record = _record(composed, job, usd, session)
    record = replace(record, bundle=environment.key)
    assert store.url(emr_log_folder(record)) + "/" == places.logs
    subnet = next(iter(sorted(getattr(config.cloud.subnets, config.cloud.subnets.nodes).values())), "")
    return EmrLaunch(
        run=run,
        record=record,
        session=session,
        store=store,
        contents=contents,
        environment=environment,
        job=job,
        role=role,
        subnet=subnet,
        estimate=estimate,
        usd_per_hour=usd,
        documents_assumed=documents is None,
    )


def _executors(config: Config) -> int:
    """Return the most executors: the settings', else what the nodes hold."""
    wanted = config.cloud.emr
    if config.cloud.target == SERVERLESS:
        if wanted.executors is not None:
            return wanted.executors
        raise SkytrainError(
            "cloud.emr.executors=null: EMR Serverless needs a limit\n  for example: cloud.emr.executors=16"
        )
    kinds = {instance.type: instance for instance in load_catalog().cpu_instances}
    count = 0
    for kind, nodes in ((wanted.core, wanted.core_nodes), (wanted.task, wanted.task_nodes)):
        instance = kinds.get(kind)
        if nodes and instance is None and wanted.executors is None:
            raise SkytrainError(
                f"{kind} is not in the catalogue: how many executors it holds is not known\n"
                "  set cloud.emr.executors, or use a type of c7i, m7i, r7i or r5"
            )
        if instance is not None:
            # YARN has about three quarters of a node's memory.
            fits = min(instance.vcpus // wanted.executor_cores, int(0.75 * instance.memory_gib // wanted.executor_gb))
            if nodes and fits < 1:
                raise SkytrainError(
                    f"a {kind} holds no executor of {wanted.executor_cores} cores and {wanted.executor_gb} GB: it has "
                    f"{instance.vcpus} vCPUs and {instance.memory_gib:.0f} GiB, of which YARN takes three quarters\n"
                    "  set cloud.emr.executor_cores and cloud.emr.executor_gb lower, or take larger nodes"
                )
            count += nodes * fits
    return wanted.executors or count


def _spent_usd(preflight: Preflight, store: Store, run: str, earlier: Sequence[LaunchRecord]) -> float:
    """Return what earlier launches of the run have cost: jobs by EMR's own account, machines of EC2 by their meter."""
    jobs = emr_costs(preflight.session, [one for one in earlier if one.target in NAMES], preflight.now)
    return spent_usd(store, run) + sum(job.usd or 0.0 for job in jobs)


def _timeout(config: Config, usd_per_hour: float, before_usd: float) -> int:
    """Return the seconds of an attempt: the settings', or fewer if all attempts would cost more than is left of the budget."""
    wanted = config.cloud.emr
    seconds = wanted.timeout
    besides = 0.0 if config.cloud.target == SERVERLESS else START_SECONDS + wanted.idle
    paid_seconds = Budget.of(config.budget).after(before_usd).hours_at(usd_per_hour) * 3600
    seconds = min(seconds, (paid_seconds - besides) / (1 + wanted.retries))
    if seconds < 300:
        spent = f", of which ${before_usd:.2f} are spent," if before_usd else ""
        raise SkytrainError(
            f"budget.usd={config.budget.usd:g}{spent} pays for {max(0.0, seconds) / 60:.1f} minutes of each of {1 + wanted.retries} "
            f"attempts at ${usd_per_hour:.2f} an hour\n"
            "  raise budget.usd, which is for the whole run, or set cloud.emr.retries=0, or use fewer executors or nodes"
        )
    return int(seconds)


def _record(composed: Composed, job: EmrJobSpec, usd: float, session: AwsSession) -> LaunchRecord:
    wanted = job.settings
    target = str(composed.config.cloud.target)
    nodes = job.executors if target == SERVERLESS else 1 + wanted.core_nodes + wanted.task_nodes
    kind = f"{wanted.executor_cores} vCPU {wanted.executor_gb} GB" if target == SERVERLESS else wanted.core
    group = LaunchedGroup(
        name=job.name,
        zone="",
        instance_type=kind,
        market=target,
        nodes=nodes,
        usd_per_hour=usd / nodes,
        kill_at=timestamp(job.kill_at),
        placement_group=False,
    )
    record = launch_record(composed, LaunchId(job.run, job.launch), job.launched_at, [group], session=session)
    return replace(record, verb="prepare", image=wanted.release)
