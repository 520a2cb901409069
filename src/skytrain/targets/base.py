"""What a target of `skytrain launch` is given, and what it must do."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from ..config import Composed, Config, SkytrainError
from ..runs import Reporter

if TYPE_CHECKING:
    from ..aws import AwsSession
    from ..jobs import NodeRequest, RentedMachines
    from ..planning import ClusterCosts, JobKind, Offer, Target
    from .checks import Finding
    from .eks.serve import ServingState
    from .follow import RunEnd, RunFollower
    from .leftovers import GcRequest, Leftovers
    from .stopping import PlannedStop


@dataclass(frozen=True)
class LaunchRequest:
    """What the user asked for."""

    job: JobKind
    words: Sequence[str]  # settings
    folders: Sequence[Path]  # of the user's own configuration
    compose: Callable[[Sequence[str]], Composed]  # makes a configuration of settings
    tell: Callable[[Finding], None]  # shows the result of a check
    plan: Path | None = None
    replan: bool = False
    only: Mapping[str, Any] = field(default_factory=dict)  # --instance, --nodes, --market: for a new plan
    smoke: str | None = None
    keep_seconds: float = 0.0
    dry_run: bool = False

    @property
    def chooses(self) -> bool:
        """Whether --instance, --nodes or --market is given."""
        return any(value is not None for value in self.only.values())

    def files(self) -> dict[str, bytes]:
        """The user's own groups of settings, which go to the machines."""
        from .ec2.launch import config_files

        return config_files([*self.folders, Path()])


ShowRun = Callable[["RunFollower", str], "RunEnd | None"]  # shows a run until it ends; None: the user has detached


@dataclass(frozen=True)
class ReadyJob:
    """A job that has passed every check: what is shown, asked and started. Nothing is created yet."""

    name: str  # of the run or the sweep
    config: Config
    requests: str  # what --dry-run prints
    summary: Sequence[tuple[str, str]]  # shown before the question
    start: Callable[[Reporter], Sequence[str]]  # creates the job; returns lines about it
    question: str = "Launch?"
    session: AwsSession | None = None  # whose account the question names
    usd_per_hour: float = 0.0
    notes: Sequence[str] = ()
    follows: bool = True  # whether --follow can watch it
    before: Callable[[ShowRun, Callable[[str], None]], int | None] | None = None
    """Watches what comes before the run itself; returns an exit code if the run does not start."""
    next_words: Sequence[str] = ()  # of the commands that people type next
    next_options: bool = True  # whether those watch and follow


Rows = list[tuple[str, ...]]  # of a table, header first


@dataclass(frozen=True)
class RunJobs:
    """The jobs of a run that a target has."""

    tables: Sequence[Rows] = ()
    facts: Sequence[Mapping[str, Any]] = ()  # the same, for --json
    lines: Sequence[str] = ()  # below the tables


@dataclass(frozen=True)
class JobLog:
    """What the jobs of a run wrote before the run writes its own log to the store."""

    lines: Sequence[str]
    ended: bool  # whether nothing will follow


class LaunchTarget(Protocol):
    """One place to run jobs. Its module sets `TARGET` to an instance; a class of yours is named by its path."""

    name: str  # the value of cloud.target
    jobs: tuple[JobKind, ...] = ("train",)
    can_smoke: bool = False  # takes --smoke and --keep-on-failure
    priced: Target | None = None  # whose machines `plan` compares; None: all that are known
    size_setting: str | None = None  # says how many machines, where no plan does: cloud.slurm.nodes

    def prepare(self, request: LaunchRequest) -> ReadyJob:
        """Check everything that can be checked. Raises SkytrainError with the exit code of the first problem."""
        ...

    def costs_around(self, config: Config, offer: Offer) -> ClusterCosts | None:
        """Return what the target costs besides the machines of an offer, for `plan`."""
        return None

    def run_jobs(self, config: Config, run: str | None) -> RunJobs | None:
        """Return the jobs of a run. None: it has machines of the account, which `status` finds by their tags."""
        return None

    def has_job(self, config: Config, run: str) -> bool | None:
        """Return whether a job of a run waits or runs, for who watches it. None: only the store tells."""
        return None

    def job_log(self, config: Config, run: str, lines: int | None) -> JobLog | None:
        """Return the last lines that the jobs of a run wrote. None: they have no log but the run's."""
        return None

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

    def take_part(self, config: Config, request: NodeRequest, run: Callable[[Config, NodeRequest], int]) -> int:
        """Let `run` take part in a run on this host, as `skytrain node` does there; returns the exit code."""
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
        """Return what is served under a name that is no run's."""
        return None


class NoTarget(LaunchTarget):
    """Where cloud.target is not set: the runs of a store, and the machines of an account, if there is one."""

    name = "none"
    jobs: tuple[JobKind, ...] = ("train", "prepare", "tune")
    can_smoke = True

    def prepare(self, request: LaunchRequest) -> ReadyJob:
        raise SkytrainError("cloud.target is not set\n  add cloud=ec2")
