"""Launch on Kubernetes: check what can be checked, write the record, create the job whose pods train the run."""

from __future__ import annotations

import shlex
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from ...aws import AwsSession, find_secret, is_preview, preview_container
from ...config import EXIT_CODES, Composed, Config, EksConfig, SkytrainError, plugin_targets
from ...models import check_mesh
from ...planning import Plan, load_catalog, timestamp
from ...runs import (
    LaunchedGroup,
    LaunchId,
    LaunchRecord,
    Reporter,
    ended_launch,
    launch_origin,
    launches_of,
    next_launch,
    run_name,
)
from ...storage import Store, open_store
from ..jobs import launch_record, node_command
from ..lifecycle import Advance, LaunchSteps, run_launch
from ..limits import check_alone, check_place, check_same, seconds_affordable
from ..plans import plan_file
from .jobs import check_quota, jobs_in_cluster, pod_reason, remove_created
from .kube import KubeCluster, KubeError, KubeKind, KubeObject, open_cluster
from .requests import (
    METRICS_PORT,
    POD_CONFIG_FOLDER,
    EksJobSpec,
    check_eks_settings,
    check_grace,
    offer_size,
    smoke_size,
)

LOOK_SECONDS = 30.0  # between two looks at a job whose pods wait
SMOKE_SECONDS = 3600.0  # after which a smoke test is ended


class PreflightError(SkytrainError):
    """The error of a job that would wait for ever for what its cluster lacks."""

    exit_code = EXIT_CODES["preflight"]


@dataclass(frozen=True)
class EksLaunch:
    """A job that has passed every check, before anything is created."""

    run: str
    plan: Plan | None  # None: a smoke test on CPUs
    record: LaunchRecord
    store: Store
    job: EksJobSpec
    usd_per_hour_each: float | None
    cluster: KubeCluster | None  # None: the cluster was not asked

    @property
    def objects(self) -> list[KubeObject]:
        return self.job.objects()

    @property
    def usd_per_hour(self) -> float:
        return self.job.size.nodes * (self.usd_per_hour_each or 0.0)


@dataclass(frozen=True)
class EksRequest:
    """A job as its user asked for it; without a plan it is a smoke test on CPUs (cloud.eks.cpus)."""

    composed: Composed
    plan: Plan | None
    files: Mapping[str, bytes]  # the user's own groups of settings


def prepare_eks_launch(request: EksRequest, session: Callable[[], AwsSession], *, ask: bool = True) -> EksLaunch:
    """Check everything that can be checked, and make the objects. Nothing is created.

    With `ask` off neither AWS nor the cluster nor the store is asked: for a look at the objects.
    Raises SkytrainError with the exit code of the first problem: 3 preflight, 4 quota, 11 credentials.
    """
    if is_preview(request.composed.config.cloud):
        request = replace(request, composed=_with_preview_image(request.composed))
    composed = request.composed
    plan = request.plan
    config = composed.config
    eks = composed.config.cloud.eks
    check_eks_settings(eks)
    check_grace(eks, config.trainer.stop_within)
    _check_plugins(composed)
    if plan is not None:
        check_place(config, plan)
        check_same(composed, plan)
        _check_family(eks, plan)
    else:
        _check_smoke(config)
    run = run_name(config)
    cluster = None
    number = "00001"
    store = open_store(config.store)
    owner = config.cloud.owner or "unknown"
    account = config.cloud.account or ""
    caller = ""
    if ask:
        cluster = open_cluster(eks, session)
        owner, account, caller = _caller(config, session)
        for place in config.cloud.secrets.values():
            find_secret(session(), place)
        earlier = launches_of(store, run)
        _check_alone(earlier, store, cluster, config, run)
        number = next_launch(earlier, ended_launch(store, run))
    job, usd = _job(request, run, number, owner)
    if ask:
        most = seconds_affordable(config, store, run, usd * job.size.nodes if usd is not None else None)
        job = replace(job, run_seconds=min(job.run_seconds, most))
    record = replace(
        _record(composed, plan, job, usd), account=account, launched_by=owner, origin=launch_origin(caller)
    )
    launch = EksLaunch(run=run, plan=plan, record=record, store=store, job=job, usd_per_hour_each=usd, cluster=cluster)
    if cluster is not None:
        check_quota(cluster, config.cloud, job.size.nodes * job.size.gpus)
        _rehearse(cluster, launch.objects)
    return launch


def _with_preview_image(composed: Composed) -> Composed:
    cloud = composed.config.cloud
    eks = replace(cloud.eks, image=cloud.eks.image or preview_container(cloud))
    return replace(composed, config=replace(composed.config, cloud=replace(cloud, eks=eks)))


def start_eks_launch(launch: EksLaunch, reporter: Reporter) -> None:
    """Write the record, create the objects; the job owns the others, so that they go when it goes."""
    assert launch.cluster is not None
    cluster = launch.cluster
    objects = launch.objects
    made: list[KubeObject] = []

    def create(advance: Advance) -> None:
        for each in objects:
            advance()
            made.append(cluster.create(each))
        owner = made[-1]
        reference = {
            "apiVersion": owner["apiVersion"], "kind": owner["kind"],
            "name": owner["metadata"]["name"], "uid": owner["metadata"]["uid"],
        }  # fmt: skip
        for each in made[:-1]:
            change = {"metadata": {"ownerReferences": [reference]}}
            cluster.patch(KubeKind.of(each), each["metadata"]["name"], change)

    def remove(error: BaseException) -> None:
        """Remove what was created. The answer to the last request may have been lost, unless it was a refusal."""
        refused = isinstance(error, KubeError) and 400 <= error.status < 500 and error.status != 409
        unsure = None if refused or len(made) == len(objects) else objects[len(made)]
        remove_created(cluster, made, unsure)

    steps = LaunchSteps(
        store=launch.store, record=launch.record, create=create, remove=remove, inputs=plan_file(launch.plan)
    )
    run_launch(steps, reporter)


def wait_for_pods(launch: EksLaunch, tell: Callable[[str], None]) -> None:
    """Wait until a pod runs or has ended; why pods, or a job without pods, wait is told once for each reason.

    Raises SkytrainError if the job is deleted or fails before that: nobody would ever train.
    """
    assert launch.cluster is not None
    cluster = launch.cluster
    job = launch.job
    told = set[str]()
    selector = ",".join(
        f"{name}={job.labels[name]}" for name in ("skytrain/project", "skytrain/run", "skytrain/launch")
    )

    def tell_once(name: str, reason: str | None) -> None:
        if reason and reason not in told:
            told.add(reason)
            tell(f"{name} waits: {reason}")

    deadline = time.monotonic() + job.eks.wait
    while (left := deadline - time.monotonic()) > 0:
        for pod in cluster.watch_pods(job.eks.namespace, selector, min(left, LOOK_SECONDS)):
            if pod.get("status", {}).get("phase") in ("Running", "Succeeded", "Failed"):
                return
            tell_once(pod["metadata"]["name"], pod_reason(pod))
        jobs = jobs_in_cluster(cluster, job.cloud, job.run)
        present = next((each for each in jobs if each.name == job.name), None)
        if present is None or present.state in ("deleting", "failed"):
            failed = present is not None and present.state == "failed"
            how = f"has failed: {present.reason}" if present is not None and failed else "was deleted"
            raise SkytrainError(f"job {job.name} {how}\n  no pod had started; launch the run again when that is mended")
        tell_once(job.name, None if present.facts["pods"] else present.reason)


def _caller(config: Config, session: Callable[[], AwsSession]) -> tuple[str, str, str]:
    """Return who launches, in which account, and the caller's ARN.

    A cluster that is reached by a kubeconfig needs no credentials of AWS.
    """
    if config.cloud.eks.cluster is None:
        return config.cloud.owner or "unknown", config.cloud.account or "", ""
    identity = session().identity
    return config.cloud.owner or identity.name, identity.account, identity.arn


def _check_plugins(composed: Composed) -> None:
    targets = [name for name in plugin_targets(composed.values) if not name.startswith("skytrain.")]
    if targets and not composed.config.cloud.packages:
        raise SkytrainError(
            f"{targets[0]} is a class of yours, which the pods' image must have\n"
            "  install it in the image (docs/image.md), then name its package: cloud.packages=[NAME]"
        )


def _check_family(eks: EksConfig, plan: Plan) -> None:
    """Raise for a machine that no node pool can start: its pods would wait until the launch's limit."""
    family = plan.choice.instance_type.split(".")[0]
    if eks.instance_families and family not in eks.instance_families:
        raise PreflightError(
            f"{plan.choice.instance_type}: the cluster starts {', '.join(eks.instance_families)} only "
            "(cloud.eks.instance_families)\n"
            f"  add {family} to karpenter.instance_families of infra/terraform/eks, apply it and the manifests, and add it "
            "to the setting; or plan again"
        )


def _check_smoke(config: Config) -> None:
    eks = config.cloud.eks
    if config.trainer.device != "cpu":
        raise SkytrainError(
            f"cloud.eks.cpus={eks.cpus}: pods without GPUs\n  set trainer.device=cpu, or leave out cloud.eks.cpus"
        )
    if not config.store.root.startswith("s3://") and not eks.volumes:
        raise SkytrainError(
            f"store.root={config.store.root}: pods reach only a bucket, or a volume (cloud.eks.volumes)\n"
            "  cloud=eks takes the account's bucket; copy data there first: skytrain store copy"
        )
    check_mesh(config, eks.nodes, eks.nodes)


def _check_alone(earlier: list[LaunchRecord], store: Store, cluster: KubeCluster, config: Config, run: str) -> None:
    """Raise if an earlier launch of the run is not over."""
    active = {job.name for job in jobs_in_cluster(cluster, config.cloud, run) if not job.has_ended}
    here = lambda record: record.groups[0].name in active if record.target == "eks" else None  # noqa: E731
    check_alone(earlier, store, datetime.now(UTC), here)
    if active:
        raise SkytrainError(
            f"the cluster has a job {min(active)} of a run {run} that this store does not know\n"
            f"  choose another run=NAME, or end it: skytrain stop {shlex.quote(run)} cloud=eks"
        )


def _rehearse(cluster: KubeCluster, objects: list[KubeObject]) -> None:
    """Let the server check the job without keeping it: access, schema and admission."""
    try:
        cluster.create(objects[-1], dry_run=True)
    except KubeError as error:
        if objects[-1]["kind"] == "TrainJob" and error.status != 404:
            return  # its runtime is not there yet; the controller's webhook looks for it
        raise


def _job(request: EksRequest, run: str, number: str, owner: str) -> tuple[EksJobSpec, float | None]:
    config = request.composed.config
    plan = request.plan
    eks = config.cloud.eks
    project = config.cloud.project
    if project is None:
        raise SkytrainError("cloud.project is not set\n  skytrain cloud init sets it")
    usd = eks.usd_per_hour
    if plan is not None:
        offer = plan.choice
        least = load_catalog().least_usd_per_hour(offer.instance_type, offer.region, offer.market)
        usd = usd or max(least, plan.usd_per_hour)
        size = offer_size(offer)
        seconds = plan.choice.kill_after_seconds
        processes = max(1, plan.choice.gpus_per_node)
    else:
        assert eks.cpus is not None
        size = smoke_size(eks.nodes, eks.cpus)
        seconds = SMOKE_SECONDS
        processes = 1
    command = node_command(
        request.composed.overrides,
        LaunchId(run, number),
        plan.choice if plan is not None else None,
        nodes=size.nodes,
        processes=processes,
        usd_per_hour=usd,
        options=(f"metrics.prometheus_port={METRICS_PORT}", "--config-dir", POD_CONFIG_FOLDER),
    )
    files = {path: body.decode() for path, body in request.files.items()}
    now = datetime.now(UTC)
    return EksJobSpec(
        run=run,
        launch=number,
        project=project,
        owner=owner,
        size=size,
        cloud=config.cloud,
        run_seconds=seconds,
        launched_at=now,
        command=command,
        files=files,
    ), usd


def _record(composed: Composed, plan: Plan | None, job: EksJobSpec, usd: float | None) -> LaunchRecord:
    size = job.size
    kill_at = timestamp(job.kill_at)
    kind = size.instance_type or "any"
    market = size.market or "on-demand"
    group = LaunchedGroup(
        name=job.name,
        zone="",
        instance_type=kind,
        market=market,
        nodes=size.nodes,
        usd_per_hour=usd or 0.0,
        kill_at=kill_at,
        placement_group=False,
    )
    record = launch_record(composed, LaunchId(job.run, job.launch), job.launched_at, [group], plan)
    return replace(record, image=str(job.eks.image))
