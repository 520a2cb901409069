"""What a target of `skytrain launch` is given, and what it must do."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol

from ..config import Composed, Config, RecipeWeights, SkytrainError, format_seconds
from ..planning import HOURS_PER_MONTH
from ..runs import LaunchRecord, Reporter
from ..storage import Store
from .bundle import config_files

if TYPE_CHECKING:
    from ..aws import AwsSession
    from ..jobs import NodeRequest, RentedMachines
    from ..planning import Catalog, CorpusWork, JobKind, Offer, PreparationOption, Seller, ServicePrices
    from .checks import Check, Finding, Preflight
    from .follow import RunEnd, RunFollower
    from .leftovers import GcRequest, Leftovers
    from .plans import PlannedJob
    from .serving import ServingState
    from .stopping import PlannedStop


@dataclass(frozen=True)
class LaunchRequest:
    """What the user asked for."""

    job: JobKind
    overrides: Sequence[str]
    folders: Sequence[Path]  # of the user's own configuration
    compose: Callable[[Sequence[str]], Composed]  # makes a configuration of overrides
    tell: Callable[[Finding], None]  # shows the result of a check
    plan: Path | None = None
    replan: bool = False
    only: Mapping[str, Any] = field(default_factory=dict)  # --instance, --nodes, --market: for a new plan
    smoke: str | None = None
    keep_seconds: float = 0.0
    keep: bool = False  # machines stay until their kill time after success
    dry_run: bool = False

    @property
    def chooses(self) -> bool:
        """Whether --instance, --nodes or --market is given."""
        return any(value is not None for value in self.only.values())

    @property
    def recipe_weights(self) -> RecipeWeights:
        """Return whether the weights that a recipe names are read: a launch needs them, a dry run only says so."""
        return "if-stored" if self.dry_run else "read"

    def files(self) -> dict[str, bytes]:
        """Return the user's own groups of settings, which go to the machines."""
        return config_files([*self.folders, Path()])


Rows = list[tuple[str, ...]]  # rows of a table, header first
ShowRun = Callable[["RunFollower", str], "RunEnd | None"]  # shows a run until it ends; None: the user has detached


@dataclass(frozen=True)
class ReadyJob:
    """A job that has passed every check: what the user is shown and asked, and how it starts. Nothing is created yet."""

    name: str  # name of the run or the sweep
    config: Config
    requests: str  # what --dry-run prints
    summary: Sequence[tuple[str, str]]  # shown before the question
    start: Callable[[Reporter], Sequence[str]]  # creates the job; returns lines about it
    question: str = "Launch?"
    session: AwsSession | None = None  # its account is named in the question
    usd_per_hour: float = 0.0
    notes: Sequence[str] = ()
    follows: bool = True  # whether --follow can watch it
    before: Callable[[ShowRun, Callable[[str], None]], int | None] | None = None
    """Watches what comes before the run itself; returns an exit code if the run does not start."""
    next_arguments: Sequence[str] = ()  # arguments of the commands that are suggested next
    next_options: bool = True  # whether to suggest --watch and --follow
    records: Sequence[
        LaunchRecord
    ] = ()  # launch records that `start` writes; the last is that of the run that is followed
    conclude: Callable[[], tuple[Rows, str]] | None = None  # returns a table and a line for those who saw it end well


UNSET = "cloud.target is not set\n  add cloud=ec2"
Phase = Literal["waiting", "running", "ending", "ended"]


class SchedulerError(SkytrainError):
    """A scheduler that cannot be asked, or refuses. Whoever watches a run asks it again."""


@dataclass(frozen=True)
class SchedulerJob:
    """A job of a scheduler, as `status`, `logs`, `stop` and `costs` see it.

    `facts` are for `status --json`, and may hold what only this scheduler says of its jobs.
    """

    id: str  # the scheduler's id of the job
    name: str
    state: str  # the scheduler's name of its state
    phase: Phase  # the same for every scheduler
    hosts: str  # hosts that it has or waits for
    place: str = ""  # the cluster, application or region that has it
    reason: str | None = None  # why it waits, or how it ended
    exit_code: int | None = None
    began_at: datetime | None = None
    ended_at: datetime | None = None
    seconds: float | None = None  # run time so far
    usd: float | None = None  # cost so far
    usd_basis: str = ""  # what that figure rests on
    log: str | None = None  # where its log is: a file, a folder of the store, a prefix of CloudWatch's streams
    facts: Mapping[str, Any] = field(default_factory=dict)

    @property
    def is_active(self) -> bool:
        """Whether it waits or runs, and nobody has ended it."""
        return self.phase in ("waiting", "running")

    @property
    def has_ended(self) -> bool:
        return self.phase == "ended"


Columns = Mapping[str, Callable[[SchedulerJob], str]]  # of a table of jobs, by their titles
COLUMNS: Columns = {
    "JOB": lambda job: job.name,
    "STATE": lambda job: job.state,
    "HOSTS": lambda job: job.hosts,
    "RAN": lambda job: ran(job),
    "REASON": lambda job: job.reason or "-",
}


def ran(job: SchedulerJob) -> str:
    """Return how long the job has run, as text."""
    return "-" if job.seconds is None else format_seconds(round(job.seconds))


@dataclass(frozen=True)
class RunJobs:
    """The jobs of a run that a scheduler has, newest first, and how they are shown."""

    jobs: Sequence[SchedulerJob] = ()
    columns: Columns = field(default_factory=lambda: COLUMNS)
    more_tables: Sequence[Rows] = ()
    lines: Sequence[str] = ()  # below the tables

    @property
    def tables(self) -> list[Rows]:
        """The tables for people; none without jobs."""
        if not self.jobs:
            return []
        rows = [tuple(show(job) for show in self.columns.values()) for job in self.jobs]
        return [[tuple(self.columns), *rows], *self.more_tables]

    @property
    def facts(self) -> list[Mapping[str, Any]]:
        """The same, for --json."""
        return [job.facts for job in self.jobs]


@dataclass(frozen=True)
class JobLog:
    """What the jobs of a run wrote before the run writes its own log to the store."""

    lines: Sequence[str]
    ended: bool  # whether nothing will follow


@dataclass(frozen=True)
class CostLine:
    """A part of an hourly bill."""

    name: str
    usd_per_hour: float
    price_date: str
    note: str


@dataclass(frozen=True)
class ClusterCosts:
    """The hourly bill of a cluster around its machines."""

    idle: tuple[CostLine, ...]
    busy: tuple[CostLine, ...]  # in addition, while a run is active
    savings: tuple[CostLine, ...]  # dollars per hour saved, each compared with the cluster without it

    @property
    def idle_usd_per_hour(self) -> float:
        return sum(line.usd_per_hour for line in self.idle)

    @property
    def busy_usd_per_hour(self) -> float:
        return self.idle_usd_per_hour + sum(line.usd_per_hour for line in self.busy)

    def usd_per_month(self, busy_hours: float) -> float:
        """Return the bill of a month in which runs are active for so many hours."""
        added = self.busy_usd_per_hour - self.idle_usd_per_hour
        return self.idle_usd_per_hour * HOURS_PER_MONTH + added * busy_hours


class LaunchTarget(Protocol):
    """A place to run jobs. Its `target.py` lists an instance in `TARGETS`; a class of yours is named by its path."""

    name: str  # the value of cloud.target
    title: str = ""  # for people
    jobs: tuple[JobKind, ...] = ("train",)
    can_smoke: bool = False  # takes --smoke and --keep-on-failure
    seller: Seller | None = None  # whose prices it adds to those that `plan` compares
    service_prices: ServicePrices | None = None  # that `catalog refresh` fetches for it
    priced: str | None = None  # the seller whose machines `plan` compares; None: all that are known
    size_setting: str | None = None  # says how many machines, where no plan does: cloud.slurm.nodes
    has_tagged_machines: bool = False  # its machines are the account's, and carry the tag of their run
    shares_files: bool = False  # its hosts see the files of this computer
    bills_jobs: bool = False  # its jobs cost what the service says, and not what a run's meter counts

    def prepare(self, request: LaunchRequest) -> ReadyJob:
        """Check everything that can be checked. Raises SkytrainError with the exit code of the first problem."""
        ...

    def prepare_together(
        self, jobs: Sequence[PlannedJob], files: Mapping[str, bytes], tell: Callable[[Finding], None]
    ) -> ReadyJob:
        """Check planned jobs that start one after the other and run side by side, such as the experts of a branch."""
        raise SkytrainError(f"cloud={self.name}: several runs cannot be launched together there\n  add cloud=ec2")

    def prepare_stages(
        self, jobs: Sequence[PlannedJob], files: Mapping[str, bytes], tell: Callable[[Finding], None]
    ) -> ReadyJob:
        """Check the stages of a pipeline, each of which starts by itself when the one before has ended well."""
        raise SkytrainError(
            f"cloud={self.name}: a pipeline runs on machines of EC2, which start one another\n"
            "  add cloud=ec2, or run its stages by themselves: prepare, train, evaluate, export, report"
        )

    def doctor_checks(self, preflight: Preflight) -> tuple[Sequence[Check], Preflight]:
        """Return what `doctor` checks there, and the settings it looks at.

        AWS is asked only where an account is set up or a plan is given.
        """
        from .checks import CHECKS

        aws = preflight.plan is not None or preflight.config.cloud.project is not None
        return [one for one in CHECKS if aws or one.group != "AWS" or one.name == "account"], preflight

    def families(self, config: Config) -> Sequence[str]:
        """Return the families of machines that can be started there; none: all that are sold."""
        return ()

    def costs_around(self, config: Config, offer: Offer) -> ClusterCosts | None:
        """Return what the target costs besides the machines of an offer, for `plan`."""
        return None

    def preparation_options(
        self, config: Config, work: CorpusWork, catalog: Catalog, region: str, deadline_hours: float
    ) -> tuple[Sequence[PreparationOption], Sequence[str]]:
        """Return what preparing a corpus would cost there, for `plan prepare`, and notes about the prices."""
        return (), ()

    def run_jobs(self, config: Config, run: str | None) -> RunJobs | None:
        """Return the jobs of a run. None: it has machines of the account, which `status` finds by their tags."""
        return None

    def has_job(self, config: Config, run: str) -> bool | None:
        """Return whether a job of a run waits or runs, for those who watch it. None: only the store tells."""
        return None

    def is_live(self, session: AwsSession, record: LaunchRecord) -> bool | None:
        """Return whether AWS has machines or a job of a launch, or is asked for some. None: AWS does not know."""
        return None

    def count_machines(self, session: AwsSession, store: Store, record: LaunchRecord) -> None:
        """Record what the service's own times say that the launch's machines cost beyond what they recorded."""
        return None

    def job_costs(self, session: AwsSession, launches: Sequence[LaunchRecord], now: datetime) -> list[SchedulerJob]:
        """Return the jobs of these launches with what they cost, where the target bills jobs."""
        return []

    def job_log(self, config: Config, run: str, lines: int | None) -> JobLog | None:
        """Return the last lines that the jobs of a run wrote. None: they have no log but the run's."""
        return None

    def next_offers(self, session: AwsSession, store: Store, record: LaunchRecord) -> Callable[[], str | None] | None:
        """Return what the following terminal does for a launch again and again, and says so. None: nothing.

        It replaces lost machines, and tries the next offer when there is no capacity.
        """
        return None

    def trouble(self, session: AwsSession, store: Store, record: LaunchRecord) -> str | None:
        """Return in one line why machines of a launch ended before they did any work. None: they did, or it is unknown."""
        return None

    def gone_reason(self, store: Store, record: LaunchRecord) -> str:
        """Return why a launch that left no outcome is over, for those who watch it."""
        return f"its job has ended; see skytrain logs {shlex.quote(record.run)} {record.target_word}"

    def plan_stop(self, config: Config, run: str, tell: Callable[[str], None]) -> PlannedStop:
        """Find what `stop` ends besides the processes, which are asked through the store."""
        from .stopping import stop_with_machines

        return stop_with_machines(config, run, tell)

    def end_sweep(self, config: Config, name: str) -> None:
        """End the jobs of a sweep, whose processes were asked to stop; machines of the account end by their tags."""
        return

    def leftovers(self, config: Config, request: GcRequest, reporter: Reporter) -> Leftovers:
        """Find what is left of ended runs, for `gc`."""
        from .leftovers import account_leftovers

        return account_leftovers(config, request, reporter)

    def shell_command(
        self, config: Config, run: str, node: str | None, forward: int | None, tell: Callable[[str], None]
    ) -> list[str]:
        """Return the command of a terminal on a machine of a run; with `forward`, of a tunnel to its endpoint."""
        from .shell import session_command

        return session_command(config, run, node, forward, tell)

    def take_part(self, config: Config, request: NodeRequest, run: Callable[[Config, NodeRequest], int]) -> int:
        """Let `run` take part in a run on this host, as `skytrain node` does there; return the exit code."""
        return run(config, request)

    def instance(self, config: Config, request: NodeRequest) -> str | None:
        """Return the id of this machine, if the launch has rented it and can replace it."""
        return None

    def machines(
        self, config: Config, request: NodeRequest, instance: str | None, tell: Callable[[str], None]
    ) -> RentedMachines | None:
        """Return the machines of the launch, as the node agent sees them. None: someone else started this one."""
        return None

    def served(self, config: Config, name: str) -> ServingState | None:
        """Return what is served under a name that is not a run's."""
        return None


class NoTarget(LaunchTarget):
    """Where cloud.target is not set: the runs of a store, and the machines of an account, if there is one."""

    name = "none"
    jobs: tuple[JobKind, ...] = ("train", "prepare", "tune", "finish")
    can_smoke = True

    def prepare(self, request: LaunchRequest) -> ReadyJob:
        raise SkytrainError(UNSET)

    def prepare_together(
        self, jobs: Sequence[PlannedJob], files: Mapping[str, bytes], tell: Callable[[Finding], None]
    ) -> ReadyJob:
        raise SkytrainError(UNSET)

    def prepare_stages(
        self, jobs: Sequence[PlannedJob], files: Mapping[str, bytes], tell: Callable[[Finding], None]
    ) -> ReadyJob:
        raise SkytrainError(UNSET)
