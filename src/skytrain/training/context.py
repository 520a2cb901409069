"""The context of a run on this rank: everything that is settled before an attempt at the run starts."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from ..config import Config, uses_process_group
from ..jobs import JoinedJob, Ranks, Supervision, node_facts
from ..runs import Reporter, Silent, Start, run_name
from ..storage import Store, open_store
from .factory import TrainingPlan, choose_device, plan_training
from .interruptions import Signals
from .resolution import TrainRequest, resolve_settings


@dataclass(frozen=True)
class Worker:
    """This process as a worker of a job: its rank, the signals it has received, and its supervisor."""

    ranks: Ranks
    signals: Signals
    supervision: Supervision | None

    def report_outcome(self, outcome: str) -> None:
        """Tell the supervisor of this node why training ended."""
        if self.supervision is not None and self.ranks.local_rank == 0:
            self.supervision.report_outcome(outcome)


@dataclass(frozen=True)
class RunContext:
    """The context that every stage of `train` works with."""

    config: Config  # resolved: no setting is left at `auto`
    request: TrainRequest
    run: str  # the run's name
    plan: TrainingPlan
    job: JoinedJob
    signals: Signals
    store: Store
    reporter: Reporter  # silent on all ranks but rank 0

    @property
    def ranks(self) -> Ranks:
        return self.plan.ranks

    @property
    def start(self) -> Start:
        return self.request.start

    @property
    def url(self) -> str:
        return self.store.url(f"runs/{self.run}")

    def outcome_at(self, step: int) -> str:
        """Return the outcome of an attempt that has come as far as it was asked to."""
        return "done" if step >= self.plan.total_steps else "stopped"


@contextmanager
def start_worker(ranks: Ranks) -> Iterator[Worker]:
    """Handle signals from here on, and tell the supervisor that they may be sent."""
    supervision = Supervision.from_environment()
    with Signals(supervised=supervision is not None) as signals:
        if supervision is not None:
            supervision.arrive(ranks.local_rank)
        yield Worker(ranks, signals, supervision)


@contextmanager
def join_run(worker: Worker, config: Config, request: TrainRequest, reporter: Reporter) -> Iterator[RunContext]:
    """Yield the context of the run, inside the job's process group where there is one."""
    ranks = worker.ranks
    if not uses_process_group(config):
        yield _make_context(worker, config, request, JoinedJob(), reporter)
        return
    # The ranks meet before anything is decided: an error on one of them must reach all.
    facts = node_facts(config) if ranks.world_size > 1 else {}
    with ranks.joined(choose_device(config), timeout_seconds=config.parallel.timeout, facts=facts) as job:
        reporter = reporter if ranks.first else Silent()
        config = resolve_settings(config, request, ranks, reporter)
        yield _make_context(worker, config, request, job, reporter)


def _make_context(
    worker: Worker, config: Config, request: TrainRequest, job: JoinedJob, reporter: Reporter
) -> RunContext:
    return RunContext(
        config=config,
        request=request,
        run=run_name(config, request.start),
        plan=plan_training(config, worker.ranks),
        job=job,
        signals=worker.signals,
        store=open_store(config.store).patient(config.store.patience),
        reporter=reporter,
    )
