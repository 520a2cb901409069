"""Supervise: starts the workers of this machine, passes signals on, restarts them after a crash, and says how it ended.

Loads no torch: it stays small beside the workers, and there is little in it that could fail.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

from ..config import (
    Config,
    SkytrainError,
    check_job,
    child_environment,
    format_seconds,
    uses_process_group,
    visible_gpus,
)
from ..runs import EXIT_CODES, UNCOMMITTED
from .lifeline import die_with_parent, lives
from .network import address_towards
from .nodes import START_SECONDS, NoRendezvous, check_reachable
from .processes import ControlGroup, kill_job
from .supervision import JobError, Progress, Supervision

POLL_SECONDS = 0.1
FIRST_NODE_SECONDS = 5.0  # that the first node may be late without a word
# For the other nodes to come, at the start or after a crash, and for a cold import of torch.
OTHERS_SECONDS = START_SECONDS + 60.0
LEAVE_SECONDS = 60.0  # for workers that have said how they ended to be gone
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGHUP)
FIRST_WAIT_SECONDS = 2.0  # before a restart; doubled after each further crash without progress
LONGEST_WAIT_SECONDS = 120.0


@dataclass(frozen=True)
class ProcessLayout:
    """Which processes make a job, seen from one of its machines."""

    processes: int = 1  # on this machine
    nodes: int = 1
    node_rank: int = 0
    rendezvous: str | None = None  # host:port of the first node

    def __post_init__(self) -> None:
        if self.nodes > 1 and not self.rendezvous:
            raise SkytrainError(
                f"--nodes {self.nodes} needs --rendezvous HOST:PORT, the same on every node\n  for example: --rendezvous 10.0.0.5:29500, the first node's address"
            )
        if self.node_rank >= self.nodes:
            raise SkytrainError(f"--node-rank {self.node_rank}: {self.nodes} node(s) are numbered from 0")

    @property
    def needs_torchrun(self) -> bool:
        return self.processes > 1 or self.nodes > 1


def choose_processes(config: Config, asked: int | None) -> int:
    """As asked; otherwise one for each GPU where the work is shared, and one alone where it is not."""
    if asked is not None:
        return asked
    return max(1, count_gpus()) if uses_process_group(config) and config.trainer.device != "cpu" else 1


def count_gpus() -> int:
    """Without torch, which would take a context on each of them."""
    visible = visible_gpus()
    if visible is not None:
        return len(visible)
    return len(list(Path("/dev").glob("nvidia[0-9]*")))


def supervise(config: Config, words: Sequence[str], layout: ProcessLayout, tell: Callable[[str], None]) -> int:
    """Runs `skytrain train WORDS` on this machine's processes until the job ends; returns the exit code."""
    check_job(config, layout.processes * layout.nodes, layout.nodes)
    command = ["-m", "skytrain", "train", *words]
    max_restarts = config.trainer.max_restarts
    if layout.nodes > 1:
        if layout.node_rank > 0:
            _find_first_node(str(layout.rendezvous), tell)
        # torchrun restarts all nodes together, and counts as Restarts does (see agent.py); when it ends, none is left.
        command, max_restarts = [*torchrun(layout, max_restarts), *command], 0
    elif layout.processes > 1:
        command = [*torchrun(layout, 0), *command]
    with tempfile.TemporaryDirectory(prefix="skytrain-supervise-", ignore_cleanup_errors=True) as folder:
        limits = Limits(max_restarts, config.trainer.stop_within)
        supervision = Supervision.begin(Path(folder))
        return Supervisor(command, supervision, tell, limits, layout.processes, layout.rendezvous).run()


def _find_first_node(rendezvous: str, tell: Callable[[str], None]) -> None:
    """torchrun would wait for it in silence, and end with a traceback."""
    try:
        check_reachable(rendezvous, FIRST_NODE_SECONDS)
    except NoRendezvous:
        tell(f"nothing answers at {rendezvous} yet; waiting up to {format_seconds(START_SECONDS)} for the first node")
        check_reachable(rendezvous, START_SECONDS)


def torchrun(layout: ProcessLayout, max_restarts: int) -> list[str]:
    if layout.nodes == 1:
        meeting = ["--standalone"]
    else:
        host = "true" if layout.node_rank == 0 else "false"
        meeting = [
            *("--nnodes", str(layout.nodes), "--rdzv-backend", "c10d", "--rdzv-id", "skytrain"),
            *("--rdzv-endpoint", str(layout.rendezvous), "--rdzv-conf", f"is_host={host}"),
        ]
        # By address: the other nodes need not know this one by its name.
        if address := address_towards(str(layout.rendezvous).rpartition(":")[0]):
            meeting += ["--local-addr", address]
    counts = ["--nproc-per-node", str(layout.processes), "--max-restarts", str(max_restarts)]
    # The signals that our agent leaves to the supervisor are not in this list.
    return ["-m", "skytrain.jobs.agent", *meeting, *counts, "--signals-to-handle", "SIGQUIT"]


def restart_wait_seconds(failures: int) -> float:
    """Before the restart after so many crashes in a row. With jitter: what fails for all jobs is not asked by all at once."""
    return random.uniform(0.5, 1.0) * min(LONGEST_WAIT_SECONDS, FIRST_WAIT_SECONDS * 2.0 ** (failures - 1))


@dataclass(frozen=True)
class Limits:
    """How often a job is restarted without progress in between, and how long it may take to stop."""

    max_restarts: int
    stop_seconds: float


class Restarts:
    """Counts the crashes of a job. Progress, seen by a restart that resumes from a newer commit, makes them good."""

    def __init__(self, allowed: int) -> None:
        self._allowed, self._failures, self._progress = allowed, 0, Progress()

    def crashed(self, resumed_step: int | None) -> int | None:
        """Which restart is next, from 1; None when all are used up. `resumed_step`: from where the attempt had resumed."""
        if self._progress.made(resumed_step):
            self._failures = 0
        if self._failures >= self._allowed:
            return None
        self._failures += 1
        return self._failures


class Supervisor:
    """One job on this machine, from its first start to its end. `command` is what Python is given."""

    def __init__(
        self,
        command: Sequence[str],
        supervision: Supervision,
        tell: Callable[[str], None],
        limits: Limits,
        processes: int = 1,
        rendezvous: str | None = None,
    ) -> None:
        self._command, self._supervision, self._tell = [sys.executable, *command], supervision, tell
        self._limits, self._processes = limits, processes
        self._group = ControlGroup.create(supervision.supervisor)
        self._asked: signal.Signals | None = None  # to stop
        self._deadline: float | None = None
        self._at_once = False
        self._workers: set[int] = set()  # that can take a signal; kept here, since a cleaner may take the folder
        self._told: set[int] = set()  # workers that have had the signal
        self._rendezvous = rendezvous  # where other nodes are to come; None where there are none
        self._worked_at = 0.0  # when a worker of this node was last alive

    def _environment(self) -> dict[str, str]:
        environment = child_environment(self._supervision.environment())
        # Shared, torchrun's store keeps the addresses of workers that are dead, and those started again wait for them.
        environment["TORCH_DISABLE_SHARE_RDZV_TCP_STORE"] = "1"
        if self._processes > 1:
            environment.setdefault("OMP_NUM_THREADS", str(max(1, (os.cpu_count() or 1) // self._processes)))
        return environment

    def run(self) -> int:
        former = {number: signal.signal(number, self._handle) for number in SIGNALS}
        try:
            return self._run()
        finally:
            if self._group is not None:
                self._group.remove()
            for number, handler in former.items():
                signal.signal(number, handler)

    def _run(self) -> int:
        restarts = Restarts(self._limits.max_restarts)
        while True:
            code = self._run_once()
            ended = self._how_it_ended(self._supervision.error())
            if ended is not None:
                return ended
            why = describe_exit(code)
            number = restarts.crashed(self._supervision.resumed_step())
            if number is None:
                self._tell(f"the job crashed ({why}); the same command resumes from the last commit")
                return code if code > 0 else 128 - code
            wait = restart_wait_seconds(number)
            self._tell(
                f"the job crashed ({why}): restarting from the last commit in {format_seconds(wait)}, "
                f"restart {number} of {self._limits.max_restarts} without progress"
            )
            if not self._wait(wait):
                return EXIT_CODES[UNCOMMITTED]

    def _wait(self, seconds: float) -> bool:
        """False when a signal came meanwhile."""
        until = time.monotonic() + seconds
        while self._asked is None and time.monotonic() < until:
            time.sleep(min(POLL_SECONDS, max(0.0, until - time.monotonic())))
        return self._asked is None

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self._asked is not None and number == signal.SIGINT:
            self._at_once = True
        self._asked = self._asked or signal.Signals(number)

    def _how_it_ended(self, error: JobError | None) -> int | None:
        """Our exit code where the workers ended on purpose or were stopped; None where they crashed."""
        outcome = self._supervision.outcome()
        if outcome is not None:
            return EXIT_CODES[outcome]
        if error is not None:
            return error.exit_code
        return EXIT_CODES[UNCOMMITTED] if self._asked is not None else None

    def _begin_child(self) -> None:
        """In the child, before it becomes another program: from here on it cannot be lost."""
        die_with_parent()
        if self._group is not None:
            self._group.enter()

    def _run_once(self) -> int:
        self._supervision.forget()
        self._workers.clear()
        self._worked_at = time.monotonic()
        # In a session of its own, so that a terminal's Ctrl-C comes here alone and is passed on once.
        child = subprocess.Popen(
            self._command, env=self._environment(), start_new_session=True, preexec_fn=self._begin_child
        )
        try:
            leaving: float | None = None
            while child.poll() is None:
                self._workers |= self._supervision.workers()
                self._pass_on()
                self._check_company()
                if leaving is None and (self._supervision.outcome() or self._supervision.error()):
                    # After an error the other ranks only wait for the one that is gone.
                    leaving = time.monotonic() + (LEAVE_SECONDS if self._supervision.outcome() else 1.0)
                if leaving is not None and time.monotonic() > leaving:
                    break
                with contextlib.suppress(subprocess.TimeoutExpired):
                    child.wait(POLL_SECONDS)
        finally:
            # Also where the child has ended: what it started may not have.
            kill_job(self._supervision.supervisor, self._group)
            child.kill()
            code = child.wait()
        return code

    def _check_company(self) -> None:
        """torchrun starts workers once all nodes are there. Where they do not come it would wait in silence."""
        if self._rendezvous is None:
            return
        if any(lives(pid) for pid in self._workers):
            self._worked_at = time.monotonic()
        elif time.monotonic() - self._worked_at > OTHERS_SECONDS:
            raise NoRendezvous(
                f"no worker has started here for {format_seconds(OTHERS_SECONDS)}: not all nodes came to the rendezvous {self._rendezvous}\n"
                "  look for the first error on the other nodes; the same command, on all of them, continues from the last commit"
            )

    def _pass_on(self) -> None:
        """A signal to the workers themselves: torchrun would give them 30 seconds, however long they need to save."""
        if self._asked is None:
            return
        if self._deadline is None:
            self._deadline = time.monotonic() + self._limits.stop_seconds
            if not self._workers:
                self._tell(f"{self._asked.name} received before training began: stopping")
                self._at_once = True
        if self._at_once or time.monotonic() > self._deadline:
            if not self._at_once:
                self._tell(
                    f"not stopped within {format_seconds(self._limits.stop_seconds)} (trainer.stop_within): killed; the last commit stands"
                )
            kill_job(self._supervision.supervisor, self._group)
            return
        number = signal.SIGTERM if self._asked is signal.SIGHUP else self._asked
        for pid in self._workers - self._told:
            self._told.add(pid)
            with contextlib.suppress(ProcessLookupError):  # crashed meanwhile; the one that follows it is told
                os.kill(pid, number)


def describe_exit(code: int) -> str:
    return f"exit code {code}" if code >= 0 else signal.Signals(-code).name
