"""Supervise: starts the workers of this machine, passes signals on, starts them again after a crash, and says how it ended.

Loads no torch: it stays small beside the workers, and there is little in it that could fail.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

from ..config import Config, SkytrainError, format_seconds
from ..parallel.network import address_towards
from ..parallel.nodes import START_SECONDS, NoRendezvous, check_reachable
from ..runs import EXIT_CODES
from ..runs.supervision import VARIABLE, Supervision, die_with_parent

POLL_SECONDS = 0.1
FIRST_NODE_SECONDS = 5.0  # that the first node may be late without a word
# For the other nodes to come, at the start or after a crash, and for a cold import of torch.
OTHERS_SECONDS = START_SECONDS + 60.0
LEAVE_SECONDS = 60.0  # for workers that have said how they ended to be gone
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGHUP)
INTERRUPTED = EXIT_CODES["interrupted"]


@dataclass(frozen=True)
class Layout:
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
    return 1 if config.parallel.name == "single" or config.trainer.device == "cpu" else max(1, count_gpus())


def count_gpus() -> int:
    """Without torch, which would take a context on each of them."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        return len([word for word in visible.split(",") if word.strip() not in ("", "-1")])
    return len(list(Path("/dev").glob("nvidia[0-9]*")))


def supervise(config: Config, words: Sequence[str], layout: Layout, tell: Callable[[str], None]) -> int:
    """Runs `skytrain train WORDS` on this machine's processes until the job ends; returns the exit code."""
    worker = ["-m", "skytrain", "train", *words]
    restarts = config.trainer.max_restarts
    with tempfile.TemporaryDirectory(prefix="skytrain-supervise-") as folder:
        supervision = Supervision(Path(folder))
        if layout.needs_torchrun:
            if layout.node_rank > 0:
                _find_first_node(str(layout.rendezvous), tell)
            # torchrun counts restarts itself, over all nodes, and has used them up when it ends.
            command = [*torchrun(layout, restarts), *worker]
            return Supervisor(
                command, supervision, tell, 0, config.trainer.stop_within, layout.processes, layout.rendezvous
            ).run()
        return Supervisor(worker, supervision, tell, restarts, config.trainer.stop_within).run()


def _find_first_node(rendezvous: str, tell: Callable[[str], None]) -> None:
    """torchrun would wait for it in silence, and end with a trace."""
    try:
        check_reachable(rendezvous, FIRST_NODE_SECONDS)
    except NoRendezvous:
        tell(f"nothing answers at {rendezvous} yet; waiting up to {format_seconds(START_SECONDS)} for the first node")
        check_reachable(rendezvous, START_SECONDS)


def torchrun(layout: Layout, max_restarts: int) -> list[str]:
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
    return ["-m", "torch.distributed.run", *meeting, *counts]


class Supervisor:
    """One job on this machine, from its first start to its end. `command` is what Python is given."""

    def __init__(
        self,
        command: Sequence[str],
        supervision: Supervision,
        tell: Callable[[str], None],
        max_restarts: int,
        stop_seconds: float,
        processes: int = 1,
        rendezvous: str | None = None,
    ) -> None:
        self._command, self._supervision, self._tell = [sys.executable, *command], supervision, tell
        self._max_restarts, self._stop_seconds, self._processes = max_restarts, stop_seconds, processes
        self._asked: signal.Signals | None = None  # to stop
        self._deadline: float | None = None
        self._at_once = False
        self._told: set[int] = set()  # workers that have had the signal
        self._rendezvous = rendezvous  # where other nodes are to come; None where there are none
        self._worked_at = 0.0  # when a worker of this node was last alive

    def _environment(self) -> dict[str, str]:
        environment = {**os.environ, VARIABLE: str(self._supervision.folder)}
        # Shared, torchrun's store keeps the addresses of workers that are dead, and those started again wait for them.
        environment["TORCH_DISABLE_SHARE_RDZV_TCP_STORE"] = "1"
        if self._processes > 1:
            environment.setdefault("OMP_NUM_THREADS", str(max(1, (os.cpu_count() or 1) // self._processes)))
        return environment

    def run(self) -> int:
        former = {number: signal.signal(number, self._handle) for number in SIGNALS}
        try:
            restarts = 0
            while True:
                code = self._run_once()
                ended = self._how_it_ended()
                if ended is not None:
                    return ended
                if restarts >= self._max_restarts:
                    self._tell(
                        f"the job crashed ({describe_exit(code)}); the same command continues from the last commit"
                    )
                    return code if code > 0 else 128 - code
                restarts += 1
                self._tell(
                    f"the worker crashed ({describe_exit(code)}): starting it again from the last commit, {restarts} of {self._max_restarts}"
                )
        finally:
            for number, handler in former.items():
                signal.signal(number, handler)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self._asked is not None and number == signal.SIGINT:
            self._at_once = True
        self._asked = self._asked or signal.Signals(number)

    def _how_it_ended(self) -> int | None:
        """Our exit code where the workers ended on purpose or were stopped; None for a crash."""
        outcome, error = self._supervision.outcome(), self._supervision.error_code()
        if outcome is not None:
            return EXIT_CODES[outcome]
        if error is not None:
            return error
        return INTERRUPTED if self._asked is not None else None

    def _run_once(self) -> int:
        self._supervision.forget_workers()
        self._worked_at = time.monotonic()
        # In a session of its own, so that a terminal's Ctrl-C comes here alone and is passed on once.
        child = subprocess.Popen(
            self._command, env=self._environment(), start_new_session=True, preexec_fn=die_with_parent
        )
        try:
            leaving: float | None = None
            while child.poll() is None:
                self._pass_on(child)
                self._check_company()
                if leaving is None and (self._supervision.outcome() or self._supervision.error_code() is not None):
                    # After an error the other ranks would only be started again, to repeat it.
                    seconds = LEAVE_SECONDS if self._supervision.outcome() else 1.0
                    leaving = time.monotonic() + seconds
                if leaving is not None and time.monotonic() > leaving:
                    break
                with contextlib.suppress(subprocess.TimeoutExpired):
                    child.wait(POLL_SECONDS)
        finally:
            kill_tree(child)
            code = child.wait()
        return code

    def _check_company(self) -> None:
        """torchrun starts workers once all nodes are there. Where they do not come it would wait in silence, and end with a trace."""
        if self._rendezvous is None:
            return
        if any(_lives(pid) for pid in self._supervision.workers()):
            self._worked_at = time.monotonic()
        elif time.monotonic() - self._worked_at > OTHERS_SECONDS:
            raise NoRendezvous(
                f"no worker has started here for {format_seconds(OTHERS_SECONDS)}: not all nodes came to the rendezvous {self._rendezvous}\n"
                "  look for the first error on the other nodes; the same command, on all of them, continues from the last commit"
            )

    def _pass_on(self, child: subprocess.Popen[bytes]) -> None:
        """A signal to the workers themselves: torchrun would give them 30 seconds, however long they need to save."""
        if self._asked is None:
            return
        workers = self._supervision.workers()
        if self._deadline is None:
            self._deadline = time.monotonic() + self._stop_seconds
            if not workers:
                self._tell(f"{self._asked.name} received before training began: stopping")
                self._at_once = True
        if self._at_once or time.monotonic() > self._deadline:
            if not self._at_once:
                self._tell(
                    f"not stopped within {format_seconds(self._stop_seconds)} (trainer.stop_within): killed; the last commit stands"
                )
            kill_tree(child)
            return
        number = signal.SIGTERM if self._asked is signal.SIGHUP else self._asked
        for pid in workers - self._told:
            self._told.add(pid)
            with contextlib.suppress(ProcessLookupError):  # crashed meanwhile; the one that follows it is told
                os.kill(pid, number)


def _lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def describe_exit(code: int) -> str:
    return f"exit code {code}" if code >= 0 else signal.Signals(-code).name


def kill_tree(child: subprocess.Popen[bytes]) -> None:
    """The process and all that it started, whatever session they are in."""
    if child.poll() is not None:
        return  # what it started has ended with it, and its number may be another's by now
    for pid in [*descendants(child.pid), child.pid]:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def descendants(pid: int) -> list[int]:
    """Of a process that lives, as Linux lists them; elsewhere workers end when their sockets close."""
    parents: dict[int, int] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):  # it has ended since
            # The name, in brackets, may hold anything; the parent is the second word after it.
            parents[int(path.parent.name)] = int(path.read_text().rpartition(")")[2].split()[1])
    found: list[int] = []
    front = {pid}
    while front:
        front = {child for child, parent in parents.items() if parent in front}
        found.extend(front)
    return found
