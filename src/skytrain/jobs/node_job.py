"""The job of a generation on one host, as a child of the node agent: `skytrain train`, `prepare`, `tune` or `serve`."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from ..config import EXIT_CODES, INTERRUPTED, child_environment
from ..storage import Store
from .generations import JobGeneration
from .job_output import JobOutput
from .lifeline import die_with_parent, identify
from .processes import kill_job
from .supervision import JoinedGeneration


class NodeJob(Protocol):
    """What the node agent runs for a generation."""

    def poll(self) -> int | None:
        """Return the exit code, or None while the job runs."""

    def stop(self) -> None:
        """Let the job save and stop."""

    def kill(self) -> None: ...


class StartsJobs(Protocol):
    """A command as the job of a generation."""

    def start(self, generation: JobGeneration, node_rank: int) -> NodeJob: ...


@dataclass(frozen=True)
class TrainCommand:
    """The command that all nodes of a run start: `skytrain train WORDS`."""

    words: Sequence[str]
    nodes: int
    processes: int

    def start(self, generation: JobGeneration, node_rank: int) -> NodeJob:
        place = ["--processes", str(self.processes), "--nodes", str(self.nodes), "--node-rank", str(node_rank)]
        if self.nodes > 1:
            place += ["--rendezvous", f"{generation.address}:{generation.port}"]
        joined = JoinedGeneration(generation.number, generation.rendezvous_id, generation.members)
        return ChildJob([sys.executable, "-m", "skytrain", "train", *self.words, *place], joined)


@dataclass(frozen=True)
class PrepareCommand:
    """`skytrain prepare WORDS` on one machine. What it has finished when it is killed, the next one uses."""

    words: Sequence[str]
    store: Store
    run: str

    def start(self, generation: JobGeneration, node_rank: int) -> NodeJob:
        joined = JoinedGeneration(generation.number, generation.rendezvous_id, generation.members)
        output = JobOutput(self.store, self.run, f"{generation.number:05d}")
        return ChildJob([sys.executable, "-m", "skytrain", "prepare", *self.words], joined, output)


@dataclass(frozen=True)
class TuneCommand:
    """`skytrain tune WORDS` on one machine, as one of those that share a sweep.

    Its trials are runs of their own: they belong to the sweep, and not to this machine's generation.
    """

    words: Sequence[str]
    store: Store
    run: str
    machine: str

    def start(self, generation: JobGeneration, node_rank: int) -> NodeJob:
        output = JobOutput(self.store, self.run, f"{generation.number:05d}")
        command = [sys.executable, "-m", "skytrain", "tune", *self.words, f"tune.host={self.machine}"]
        return ChildJob(command, None, output)


@dataclass(frozen=True)
class ServeCommand:
    """`skytrain serve WORDS` on one machine."""

    words: Sequence[str]
    store: Store
    run: str

    def start(self, generation: JobGeneration, node_rank: int) -> NodeJob:
        output = JobOutput(self.store, self.run, f"{generation.number:05d}")
        return ServerJob([sys.executable, "-m", "skytrain", "serve", *self.words], None, output)


class ChildJob:
    """It ends with the agent, however the agent ends: the process gets SIGKILL, and its workers end with that."""

    def __init__(self, command: list[str], joined: JoinedGeneration | None, output: JobOutput | None = None) -> None:
        # In a new session, so that a terminal's Ctrl-C reaches the agent alone, which then stops the job in order.
        self._process = subprocess.Popen(
            command,
            env=child_environment(joined.environment() if joined is not None else {}),
            start_new_session=True,
            preexec_fn=die_with_parent,
            stdout=subprocess.PIPE if output is not None else None,
            stderr=subprocess.STDOUT if output is not None else None,
        )
        self._output = output
        if output is not None and self._process.stdout is not None:
            output.read(self._process.stdout)
        self._supervisor = identify(self._process.pid)

    def poll(self) -> int | None:
        code = self._process.poll()
        if self._output is not None:
            self._output.keep(ended=code is not None)
        return code if code is None or code >= 0 else 128 - code

    def stop(self) -> None:
        self._process.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self._process.kill()
        kill_job(self._supervisor, None)
        self._process.wait()


class ServerJob(ChildJob):
    """A server has no work that could be done: a stop that it obeys is an interruption, and the next machine serves."""

    _stopped = False

    def stop(self) -> None:
        self._stopped = True
        super().stop()

    def poll(self) -> int | None:
        code = super().poll()
        return EXIT_CODES[INTERRUPTED] if code == 0 and self._stopped else code
