"""Jobs of a Kubernetes cluster: Indexed Jobs, or TrainJobs of Kubeflow Trainer."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from ...aws import AwsSession, open_session
from ...config import Config, SkytrainError, format_seconds, plural, variable
from ...planning import EC2, Offer, load_catalog
from ...runs import Reporter
from ..base import ClusterCosts, JobLog, LaunchRequest, LaunchTarget, ReadyJob, RunJobs, ShowRun
from ..checks import Preflight, require
from ..leftovers import GcRequest, Leftovers
from ..plans import planned_job
from ..serving import ServingState
from ..stopping import PlannedStop, StopResult, stop_with_jobs
from .checks import CLUSTER_QUOTA, SPOT_ROLE
from .cleanup import cluster_leftovers
from .costs import ClusterMachines, price_cluster
from .jobs import COLUMNS, active_eks_jobs, cluster_of, cluster_overrides, pod_log, pod_rows, remove_job, run_pods
from .launch import EksLaunch, EksRequest, prepare_eks_launch, start_eks_launch, wait_for_pods
from .requests import to_yaml
from .serve import NAME as SERVED, serving_state, stop_serving

if TYPE_CHECKING:
    from ...jobs import NodeRequest

INDEX = "JOB_COMPLETION_INDEX"
ADDRESS = "POD_IP"


@dataclass(frozen=True)
class PodHost:
    """This pod among those of its job. Its name follows the index, so that a replacement is known as the same host.

    A host that starts again under its name ends the generation of its predecessor at once; another name would have
    the others wait until the heartbeat is missed.
    """

    name: str
    address: str


def read_pod(nodes: int) -> PodHost:
    """Return this pod; raises SkytrainError outside an Indexed Job of that many pods."""
    index = variable(INDEX)
    address = variable(ADDRESS)
    if not index or not address:
        missing = INDEX if not index else ADDRESS
        raise SkytrainError(
            f"{missing} is not set: this is not a pod of a job that `skytrain launch cloud=eks` made\n"
            "  elsewhere, leave out cloud=eks: skytrain node ... --name NAME"
        )
    if not index.isdigit() or int(index) >= nodes:
        raise SkytrainError(f"{INDEX}={index}: the run is planned for {nodes} pods, 0 to {nodes - 1}")
    return PodHost(f"pod-{index}", address)


ONE_KIND = "a job has one kind of machine: the plan's fallbacks are not used"


class EksLauncher(LaunchTarget):
    """Creates a job, whose pods run the node agent."""

    name = "eks"
    title = "EKS"
    priced: str | None = EC2.name  # nodes of a cluster are EC2's

    def prepare(self, request: LaunchRequest) -> ReadyJob:
        asked = _request(request)
        config = asked.composed.config

        def session() -> AwsSession:
            return open_session(config.cloud.region, config.cloud.account)

        # A cluster that is reached by a kubeconfig may be in another account, and a smoke test on CPUs needs no new node.
        if not request.dry_run and config.cloud.eks.cluster is not None and asked.plan is not None:
            require([CLUSTER_QUOTA, SPOT_ROLE], Preflight(config, asked.plan), request.tell)
        launch = prepare_eks_launch(asked, session, ask=not request.dry_run)

        def start(reporter: Reporter) -> list[str]:
            start_eks_launch(launch, reporter)
            return [
                f"launched {launch.run}: {launch.job.cloud.eks.job_kind} {launch.job.name} in {config.cloud.eks.namespace}",
                "The job needs neither this terminal nor this computer.",
            ]

        def wait(show: ShowRun, tell: Callable[[str], None]) -> None:
            wait_for_pods(launch, tell)

        return ReadyJob(
            name=launch.run,
            config=config,
            requests=to_yaml(launch.objects).rstrip("\n"),
            summary=_summary(launch, config),
            start=start,
            notes=[ONE_KIND] if launch.plan is not None and launch.plan.offers[1:] else [],
            before=wait,
            next_arguments=cluster_overrides(config),
        )

    def families(self, config: Config) -> Sequence[str]:
        return config.cloud.eks.instance_families

    def costs_around(self, config: Config, offer: Offer) -> ClusterCosts:
        machines = ClusterMachines(offer.instance.type, offer.nodes, offer.market, offer.region)
        return price_cluster(load_catalog(), machines, config.cloud.closed_network)

    def run_jobs(self, config: Config, run: str | None) -> RunJobs:
        jobs = run_pods(config, run) if run else []
        pods = [pod_rows(jobs[0])] if jobs and jobs[0].facts["pods"] else []  # of the newest one
        return RunJobs(jobs, COLUMNS, more_tables=pods)

    def has_job(self, config: Config, run: str) -> bool:
        return bool(active_eks_jobs(config, run))

    def job_log(self, config: Config, run: str, lines: int | None) -> JobLog:
        return pod_log(config, run, lines)

    def plan_stop(self, config: Config, run: str, tell: Callable[[str], None]) -> PlannedStop:
        if run == SERVED:
            return _plan_serving_stop(config)
        active = active_eks_jobs(config, run)
        namespace = config.cloud.eks.namespace
        planned = stop_with_jobs(
            config,
            run,
            lambda: active_eks_jobs(config, run),
            end=lambda job: remove_job(cluster_of(config), config.cloud, job),
            ended="deleted",
        )
        requests = json.dumps([{"delete": job.name, "namespace": namespace} for job in active], indent=1)
        question = f"Stop {run} and delete {plural(len(active), 'job')} in {namespace}?" if active else None
        return replace(planned, requests=lambda: requests, question=question)

    def leftovers(self, config: Config, request: GcRequest, reporter: Reporter) -> Leftovers:
        return cluster_leftovers(config, request.selection)

    def take_part(self, config: Config, request: NodeRequest, run: Callable[[Config, NodeRequest], int]) -> int:
        """Take part as a pod of a Kubernetes job; the downward API says which, and at what address."""
        pod = read_pod(request.nodes)
        return run(config, replace(request, name=request.name or pod.name, address=request.address or pod.address))

    def served(self, config: Config, name: str) -> ServingState | None:
        return serving_state(config) if name == SERVED else None


TARGETS = {"eks": EksLauncher()}


def _plan_serving_stop(config: Config) -> PlannedStop:
    """Scale the cluster's vLLM to zero."""
    served = serving_state(config)

    def end(wait_seconds: float, force: bool, reporter: Reporter) -> StopResult:
        stopped = stop_serving(config)
        text = "no pod serves any more: the GPU nodes are given back" if stopped else "nothing was served"
        return StopResult(text, {"stopped": stopped})

    return PlannedStop(lambda: served.text, end, f"{served.text}. Stop serving?")


def _request(request: LaunchRequest) -> EksRequest:
    """Return a planned job, or with cloud.eks.cpus a smoke test, which needs no plan."""
    if request.plan is None:
        composed = request.compose(request.overrides)
        if composed.config.cloud.eks.cpus is not None:
            return EksRequest(composed, None, request.files())
    return EksRequest(*planned_job(request), request.files())


def _summary(launch: EksLaunch, config: Config) -> list[tuple[str, str]]:
    job = launch.job
    size = launch.job.size
    eks = config.cloud.eks
    hours = job.limit_seconds / 3600
    machines = f"{size.nodes} x {size.instance_type} ({size.market})" if size.instance_type else f"{size.nodes} pods"
    price = f"${launch.usd_per_hour:.2f} an hour" if launch.usd_per_hour_each is not None else "unknown"
    most = f", at most ${launch.usd_per_hour * hours:.2f} by then" if launch.usd_per_hour_each is not None else ""
    cluster = launch.cluster.name if launch.cluster is not None else eks.cluster or "of the kubeconfig"
    takes = []
    if launch.plan is not None:
        cost = launch.plan.choice.cost
        takes = [("takes", f"{cost.hours:.1f} h (p90 {cost.hours_p90:.1f} h), ${cost.usd:.2f}")]
    return [
        ("run", launch.run),
        ("cluster", f"{cluster}, namespace {eks.namespace}"),
        ("account", f"{launch.record.account or 'by kubeconfig'} in {launch.record.region or 'any region'}"),
        ("job", f"{config.cloud.eks.job_kind} {job.name}"),
        ("machines", machines),
        ("each pod", f"{size.gpus} GPUs, {size.efa} EFA, {size.cpus} CPUs, {size.memory_gib} GiB"),
        ("price", price),
        *takes,
        ("limit", f"{format_seconds(job.limit_seconds)}, waiting for nodes included{most}"),
        ("store", launch.store.root),
    ]
