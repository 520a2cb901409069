"""The supervisor: starts this machine's workers, passes signals on, restarts after a crash, sets the exit code.

It does not import torch, so that it stays small and little in it can fail.
"""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

from ..aws import find_metadata
from ..config import (
    EXIT_CODES,
    INTERRUPTED,
    UNCOMMITTED,
    Config,
    SkytrainError,
    StoreConfig,
    child_environment,
    format_seconds,
    uses_process_group,
    visible_gpus,
)
from ..models import check_mesh
from ..runs import Cause, CommandMeter, Sync, last_metrics, read_outcome, run_name, stop_asked, write_outcome
from ..storage import open_store
from .early_signals import handled_signals
from .lifeline import began_at, die_with_parent, identify, is_alive, lives
from .network import address_towards
from .nodes import START_SECONDS, NoRendezvous, check_reachable
from .processes import ControlGroup, kill_job
from .supervision import OWNER_FILE, ClaimedAttempt, JobError, JoinedGeneration, ResumeProgress, Supervision

POLL_SECONDS = 0.1
FOLDER_PREFIX = "skytrain-supervise-"
FIRST_NODE_SECONDS = 5.0  # grace period before node 0 is reported late
READY_SECONDS = 120.0  # for node 0 of a generation, whose agent runs, to start its job: two cold imports of torch
# Limit on the other nodes joining, at the start or after a crash, with a cold import of torch.
OTHERS_SECONDS = START_SECONDS + 60.0
LEAVE_SECONDS = 60.0  # limit on workers exiting after they have reported how they ended
FIRST_WAIT_SECONDS = 2.0  # wait before the first restart; doubled after each further crash without progress
LONGEST_WAIT_SECONDS = 120.0
RECORD_SECONDS = 5.0  # limit on recording an outcome in the store: the user waits for the command to end


@dataclass(frozen=True)
class ProcessLayout:
    """The processes of a job, seen from one of its machines."""

    processes: int = 1  # on this machine
    nodes: int = 1
    node_rank: int = 0
    rendezvous: str | None = None  # host:port of node 0
    generation: JoinedGeneration | None = None  # restarted by the node agent, as the next generation

    def __post_init__(self) -> None:
        if self.nodes > 1 and not self.rendezvous:
            raise SkytrainError(
                f"--nodes {self.nodes} needs --rendezvous HOST:PORT, the same on every node\n"
                "  for example, with the first node's address: --rendezvous 10.0.0.5:29500"
            )
        if self.node_rank >= self.nodes:
            raise SkytrainError(f"--node-rank {self.node_rank}: {self.nodes} node(s) are numbered from 0")


def choose_processes(config: Config, asked: int | None) -> int:
    """Return `asked`, or else one for each GPU if the mode uses several processes, and one if it does not."""
    if asked is not None:
        return asked
    return max(1, count_gpus()) if uses_process_group(config) and config.trainer.device != "cpu" else 1


def count_gpus() -> int:
    """Count the GPUs without torch, which would create a context on each."""
    visible = visible_gpus()
    if visible is not None:
        return len(visible)
    return len(list(Path("/dev").glob("nvidia[0-9]*")))


def supervise(config: Config, arguments: Sequence[str], layout: ProcessLayout, tell: Callable[[str], None]) -> int:
    """Run `skytrain train ARGUMENTS` on this machine's processes until the job ends, and return the exit code."""
    check_mesh(config, layout.processes * layout.nodes, layout.nodes)
    command = ["-m", "skytrain", "train", *arguments]
    max_restarts = config.trainer.max_restarts if layout.generation is None else 0
    if layout.nodes > 1:
        if layout.node_rank > 0:
            # The hosts of a generation were all ready a moment ago.
            _find_first_node(str(layout.rendezvous), tell, READY_SECONDS if layout.generation else START_SECONDS)
        # torchrun restarts all nodes together, and counts as Restarts does (see agent.py); when it ends, no restart is left.
        command = [*torchrun(layout, max_restarts), *command]
        max_restarts = 0
    elif layout.processes > 1:
        command = [*torchrun(layout, 0), *command]
    remove_abandoned_folders()
    with (
        tempfile.TemporaryDirectory(prefix=FOLDER_PREFIX, ignore_cleanup_errors=True) as folder,
        command_metered(config, layout) as metering,
    ):
        supervision = Supervision.begin(Path(folder))
        limits = Limits(
            max_restarts,
            config.trainer.stop_within,
            lambda: was_asked_to_stop(config.store, supervision.claim(), tell),
        )
        supervisor = Supervisor(
            command,
            supervision,
            tell,
            limits,
            processes=layout.processes,
            rendezvous=layout.rendezvous,
            metering=metering,
        )
        code = supervisor.run()
        claim = supervision.claim()
        if code == EXIT_CODES[UNCOMMITTED] and claim is not None:
            record_interruption(config.store, claim, supervisor.interruption, tell)
        return code


@contextlib.contextmanager
def command_metered(config: Config, layout: ProcessLayout) -> Iterator[Sync | None]:
    """Count this machine for as long as the command runs, in a thread; None where others count it."""
    began = began_at(identify(os.getpid()))
    if layout.generation is not None or began is None:
        yield None
        return
    meter: CommandMeter | None = None

    def count() -> None:
        nonlocal meter
        if meter is None:
            if config.budget.whole_machine and find_metadata() is not None:
                return  # an EC2 instance, which its workers count from its launch
            store = open_store(config.store).hurried(RECORD_SECONDS)
            meter = CommandMeter(store, run_name(config), config.budget.usd_per_hour, began)
        meter.write()

    sync = Sync(lambda text: None)  # the workers use the same store, and say what is wrong with it
    sync.each_time(count)
    sync.start()
    try:
        yield sync
    finally:
        sync.close(RECORD_SECONDS)
        if meter is not None:
            with contextlib.suppress(SkytrainError):
                meter.close()


def remove_abandoned_folders() -> None:
    """Remove the folders of supervisors that were killed and could not remove their own."""
    for folder in Path(tempfile.gettempdir()).glob(f"{FOLDER_PREFIX}*"):
        with contextlib.suppress(OSError):  # another user's, or another command removes it at this moment
            owner = folder / OWNER_FILE
            if owner.exists() and not is_alive(owner.read_text()):
                shutil.rmtree(folder)


def _find_first_node(rendezvous: str, tell: Callable[[str], None], seconds: float) -> None:
    """Wait for node 0 with a message. torchrun would wait silently, and end with a traceback."""
    try:
        check_reachable(rendezvous, FIRST_NODE_SECONDS)
    except NoRendezvous:
        tell(f"nothing answers at {rendezvous} yet; waiting up to {format_seconds(seconds)} for node 0")
        check_reachable(rendezvous, seconds)


def torchrun(layout: ProcessLayout, max_restarts: int) -> list[str]:
    if layout.nodes == 1:
        meeting = ["--standalone"]
    else:
        host = "true" if layout.node_rank == 0 else "false"
        identity = layout.generation.rendezvous_id if layout.generation else "skytrain"
        meeting = [
            *("--nnodes", str(layout.nodes), "--rdzv-backend", "c10d", "--rdzv-id", identity),
            *("--rdzv-endpoint", str(layout.rendezvous), "--rdzv-conf", f"is_host={host}"),
        ]
        # By address: the other nodes may not be able to resolve this one's name.
        if address := address_towards(str(layout.rendezvous).rpartition(":")[0]):
            meeting += ["--local-addr", address]
    counts = ["--nproc-per-node", str(layout.processes), "--max-restarts", str(max_restarts)]
    # The signals that our agent leaves to the supervisor are not in this list.
    return ["-m", "skytrain.jobs.agent", *meeting, *counts, "--signals-to-handle", "SIGQUIT"]


def restart_wait_seconds(failures: int) -> float:
    """Return the wait before a restart after this many crashes in a row; jitter keeps jobs from retrying together."""
    return random.uniform(0.5, 1.0) * min(LONGEST_WAIT_SECONDS, FIRST_WAIT_SECONDS * 2.0 ** (failures - 1))


@dataclass(frozen=True)
class Limits:
    """Limits on restarts in a row without progress, and on the time to stop."""

    max_restarts: int
    stop_seconds: float
    stop_asked: Callable[[], bool] = lambda: False  # whether `skytrain stop` named the attempt that has just crashed


class Restarts:
    """Counter of a job's crashes since its last progress: a restart that resumed from a newer commit."""

    def __init__(self, allowed: int) -> None:
        self._allowed = allowed
        self._failures = 0
        self._progress = ResumeProgress()

    def crashed(self, resumed_step: int | None) -> int | None:
        """Return the number of the next restart; None when none is left. The attempt resumed from `resumed_step`."""
        if self._progress.made(resumed_step):
            self._failures = 0
        if self._failures >= self._allowed:
            return None
        self._failures += 1
        return self._failures


class Supervisor:
    """One job on this machine, from its first start to its end. `command` has the arguments of Python."""

    def __init__(
        self,
        command: Sequence[str],
        supervision: Supervision,
        tell: Callable[[str], None],
        limits: Limits,
        *,
        processes: int = 1,
        rendezvous: str | None = None,
        metering: Sync | None = None,
    ) -> None:
        self._metering = metering
        self._command = [sys.executable, *command]
        self._supervision = supervision
        self._tell = tell
        self._limits = limits
        self._processes = processes
        self._group = ControlGroup.create(supervision.supervisor)
        self._asked: signal.Signals | None = None  # the signal that asked to stop
        self.interruption = ""  # which signal was received, and whether the workers were killed after it
        self._deadline: float | None = None
        self._at_once = False
        # Workers that are ready for signals; kept here, since a clean-up of temporary files may remove the folder.
        self._workers: set[int] = set()
        self._told: set[int] = set()  # workers that have received the signal
        self._rendezvous = rendezvous  # None with a single node
        self._worked_at = 0.0  # when a worker of this node was last alive

    def _environment(self) -> dict[str, str]:
        environment = child_environment(self._supervision.environment())
        # A shared store would keep the addresses of dead workers, and restarted ones would wait for them.
        environment["TORCH_DISABLE_SHARE_RDZV_TCP_STORE"] = "1"
        if self._processes > 1:
            environment.setdefault("OMP_NUM_THREADS", str(max(1, (os.cpu_count() or 1) // self._processes)))
        return environment

    def run(self) -> int:
        former = {number: signal.signal(number, self._handle) for number in handled_signals()}
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
            if self._limits.stop_asked():
                self.interruption = f"the job crashed ({why}) after `skytrain stop`"
                self._tell(f"{self.interruption}: it is not restarted; the last commit remains")
                return EXIT_CODES[UNCOMMITTED]
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
        """Wait, and return False if a signal arrived meanwhile."""
        until = time.monotonic() + seconds
        while self._asked is None and time.monotonic() < until:
            time.sleep(min(POLL_SECONDS, max(0.0, until - time.monotonic())))
        return self._asked is None

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self._asked is not None and number == signal.SIGINT:
            self._at_once = True
            self.interruption = "SIGINT received twice: killed without a save"
        if self._asked is None:
            self._asked = signal.Signals(number)
            self.interruption = f"{self._asked.name} received"

    def _how_it_ended(self, error: JobError | None) -> int | None:
        """Return the exit code if the workers ended on purpose or were stopped; None if they crashed."""
        outcome = self._supervision.outcome()
        if outcome is not None:
            return EXIT_CODES[outcome]
        if error is not None:
            return error.exit_code
        return EXIT_CODES[UNCOMMITTED] if self._asked is not None else None

    def _begin_child(self) -> None:
        """Tie the child to the supervisor; runs in the child before exec."""
        die_with_parent()
        if self._group is not None:
            self._group.enter()

    def _run_once(self) -> int:
        self._supervision.forget()
        self._workers.clear()
        self._worked_at = time.monotonic()
        # In a new session, so that a terminal's Ctrl-C reaches only this process and is passed on once.
        with self._metering.paused() if self._metering else contextlib.nullcontext():
            child = subprocess.Popen(
                self._command, env=self._environment(), start_new_session=True, preexec_fn=self._begin_child
            )
        if self._metering is not None:
            self._metering.wake()
        try:
            leaving: float | None = None
            while child.poll() is None:
                self._workers |= self._supervision.workers()
                self._pass_on()
                self._check_other_nodes()
                if leaving is None and (self._supervision.outcome() or self._supervision.error()):
                    # After an error the other ranks only wait for the one that ended.
                    leaving = time.monotonic() + (LEAVE_SECONDS if self._supervision.outcome() else 1.0)
                if leaving is not None and time.monotonic() > leaving:
                    break
                with contextlib.suppress(subprocess.TimeoutExpired):
                    child.wait(POLL_SECONDS)
        finally:
            # Also if the child has ended: processes that it started may still run.
            kill_job(self._supervision.supervisor, self._group)
            child.kill()
            code = child.wait()
        return code

    def _check_other_nodes(self) -> None:
        """Raise if the other nodes do not join: torchrun would wait for them silently."""
        if self._rendezvous is None:
            return
        if any(lives(pid) for pid in self._workers):
            self._worked_at = time.monotonic()
        elif time.monotonic() - self._worked_at > OTHERS_SECONDS:
            raise NoRendezvous(
                f"no worker has started here for {format_seconds(OTHERS_SECONDS)}: not all nodes joined the rendezvous {self._rendezvous}\n"
                "  look for the first error on the other nodes; the same command, on all of them, resumes from the last commit"
            )

    def _pass_on(self) -> None:
        """Send a received signal to the workers: torchrun would kill them after 30 seconds, even during a save."""
        if self._asked is None:
            return
        if self._deadline is None:
            self._deadline = time.monotonic() + self._limits.stop_seconds
            if not self._workers:
                self._tell(f"{self._asked.name} received before training began: stopping")
                self._at_once = True
        if self._at_once or time.monotonic() > self._deadline:
            if not self._at_once:
                self._at_once = True
                late = f"not stopped within {format_seconds(self._limits.stop_seconds)} (trainer.stop_within): killed"
                self.interruption += f"; {late}"
                self._tell(f"{late}; the last commit remains")
            kill_job(self._supervision.supervisor, self._group)
            return
        for pid in self._workers - self._told:
            self._told.add(pid)
            # A worker that crashed meanwhile is replaced, and its replacement gets the signal.
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, self._asked)


def describe_exit(code: int) -> str:
    return f"exit code {code}" if code >= 0 else signal.Signals(-code).name


def record_interruption(config: StoreConfig, claim: ClaimedAttempt, cause: str, tell: Callable[[str], None]) -> None:
    """Write the outcome of an attempt whose workers were killed, unless the workers or another supervisor have.

    Without an outcome, `status` would report a lost machine.
    """
    try:
        store = open_store(config).hurried(RECORD_SECONDS)
        if read_outcome(store, claim.run, claim.number) is None:
            step = max(claim.step, last_metrics(store, claim.run).get("step", 0))
            write_outcome(store, claim.run, claim.number, INTERRUPTED, step, Cause(cause))
    except SkytrainError as error:
        tell(f"warning: the outcome of attempt {claim.number} was not recorded: {error}")


def was_asked_to_stop(config: StoreConfig, claim: ClaimedAttempt | None, tell: Callable[[str], None]) -> bool:
    """Return whether `skytrain stop` names the attempt that these workers made, so that it must not be restarted."""
    if claim is None:
        return False
    try:
        return stop_asked(open_store(config).hurried(RECORD_SECONDS), claim.run, claim.number) is not None
    except SkytrainError as error:
        tell(f"warning: could not read whether the run must stop: {error}")
        return False
