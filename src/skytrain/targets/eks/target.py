"""Jobs of a Kubernetes cluster: Indexed Jobs, or TrainJobs of Kubeflow Trainer."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, replace
from typing import TYPE_CHECKING

from ...aws import AwsSession, open_session
from ...config import Config, format_seconds, plural
from ...planning import ClusterCosts, ClusterMachines, Offer, Target, load_catalog, price_cluster
from ...runs import Reporter
from ..base import JobLog, LaunchRequest, LaunchTarget, ReadyJob, RunJobs, ShowRun
from ..launch_plans import planned_job
from ..leftovers import GcRequest, Leftovers
from ..stopping import PlannedStop, StopResult, stop_with_jobs
from .cleanup import cluster_leftovers
from .host import read_pod
from .job_views import active_eks_jobs, cluster_words, eks_job_tables, pod_log, run_pods
from .launch import EksLaunch, EksRequest, prepare_eks_launch, start_eks_launch, wait_for_pods
from .requests import to_yaml
from .serve import NAME as SERVED, ServingState, serving_state, stop_serving

if TYPE_CHECKING:
    from ...jobs import NodeRequest

ONE_KIND = "a job has one kind of machine: the plan's fallbacks are not used"


class EksLauncher(LaunchTarget):
    """Creates a job, whose pods run the node agent."""

    name = "eks"
    priced: Target | None = "ec2"  # nodes of a cluster are EC2's

    def prepare(self, request: LaunchRequest) -> ReadyJob:
        asked = _request(request)
        config = asked.composed.config

        def session() -> AwsSession:
            return open_session(config.cloud.region, config.cloud.account)

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
            next_words=cluster_words(config),
        )

    def costs_around(self, config: Config, offer: Offer) -> ClusterCosts:
        machines = ClusterMachines(offer.instance.type, offer.nodes, offer.market, offer.region)
        return price_cluster(load_catalog(), machines, config.cloud.closed_network)

    def run_jobs(self, config: Config, run: str | None) -> RunJobs:
        jobs = run_pods(config, run) if run else []
        return RunJobs(eks_job_tables(jobs) if jobs else [], [asdict(job) for job in jobs])

    def has_job(self, config: Config, run: str) -> bool:
        return bool(active_eks_jobs(config, run))

    def job_log(self, config: Config, run: str, lines: int | None) -> JobLog:
        return pod_log(config, run, lines)

    def plan_stop(self, config: Config, run: str, tell: Callable[[str], None]) -> PlannedStop:
        if run == SERVED:
            return _plan_serving_stop(config)
        active = active_eks_jobs(config, run)
        namespace = config.cloud.eks.namespace
        planned = stop_with_jobs(config, run, lambda: active_eks_jobs(config, run))
        requests = json.dumps([{"delete": job.name, "namespace": namespace} for job in active], indent=1)
        question = f"Stop {run} and delete {plural(len(active), 'job')} in {namespace}?" if active else None
        return replace(planned, requests=lambda: requests, question=question)

    def leftovers(self, config: Config, request: GcRequest, reporter: Reporter) -> Leftovers:
        return cluster_leftovers(config, request.selection)

    def take_part(self, config: Config, request: NodeRequest, run: Callable[[Config, NodeRequest], int]) -> int:
        """As a pod of a Kubernetes job; the downward API says which, and at what address."""
        pod = read_pod(request.nodes)
        return run(config, replace(request, name=request.name or pod.name, address=request.address or pod.address))

    def served(self, config: Config, name: str) -> ServingState | None:
        return serving_state(config) if name == SERVED else None


TARGETS = {"eks": EksLauncher()}


def _plan_serving_stop(config: Config) -> PlannedStop:
    """Scale the cluster's vLLM to zero."""
    found = serving_state(config)

    def end(wait_seconds: float, force: bool, reporter: Reporter) -> StopResult:
        stopped = stop_serving(config)
        text = "no pod serves any more: the GPU nodes are given back" if stopped else "nothing was served"
        return StopResult(text, {"stopped": stopped})

    return PlannedStop(lambda: found.text, end, f"{found.text}. Stop serving?")


def _request(request: LaunchRequest) -> EksRequest:
    """A planned job, or with cloud.eks.cpus a smoke test, which needs no plan."""
    if request.plan is None:
        composed = request.compose(request.words)
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
