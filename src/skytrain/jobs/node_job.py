"""The job of a generation on one host, as a child of the node agent: `skytrain train`, `prepare`, `tune`, `finish` or `serve`."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import IO, Protocol

from ..config import EXIT_CODES, INTERRUPTED, child_environment, secret_variables, visible, without_secrets
from ..storage import Store, StoreError
from .generations import JobGeneration
from .lifeline import die_with_parent, identify
from .processes import kill_job
from .progress import trained_run
from .supervision import JoinedGeneration

KEPT_LINES = 2000  # only the last ones are kept
KEEP_SECONDS = 30.0  # between two writes to the store


def job_log_key(run: str, name: str = "") -> str:
    """Return the key of a job's output, which is named by its generation; without a name, that of their folder."""
    return f"runs/{run}/job-logs/{name}{name and '.log'}"


class JobOutput:
    """The output of a job: a thread prints it without secrets. Its last lines are written to the store, if one is given."""

    def __init__(self, store: Store | None, run: str, name: str, secrets: Mapping[str, str]) -> None:
        self._store = store
        self._secrets = secrets
        self._key = job_log_key(run, name)
        self._lines: deque[bytes] = deque(maxlen=KEPT_LINES)
        self._kept_at = time.monotonic()
        self._kept = 0
        self._count = 0
        self._thread: threading.Thread | None = None

    def read(self, stream: IO[bytes]) -> None:
        self._thread = threading.Thread(target=self._read, args=[stream], daemon=True)
        self._thread.start()

    def _read(self, stream: IO[bytes]) -> None:
        for raw in stream:
            text = without_secrets(raw.decode(errors="surrogateescape"), self._secrets)
            line = text.encode(errors="surrogateescape")
            sys.stderr.buffer.write(line)
            sys.stderr.flush()
            self._lines.append(line)
            self._count += 1

    def keep(self, *, ended: bool) -> None:
        """Write the lines to the store if it is time, or the last time. A failure leaves them to the next write."""
        if ended and self._thread is not None:
            self._thread.join(5.0)  # a worker that outlives the job may hold the pipe
        if self._store is None:
            return
        if not ended and (time.monotonic() - self._kept_at < KEEP_SECONDS or self._count == self._kept):
            return
        self._kept_at = time.monotonic()
        count = self._count
        try:
            self._store.write(self._key, b"".join(list(self._lines)))
            self._kept = count
        except StoreError as error:
            print(visible(f"warning: the job's output could not be kept: {error}"), file=sys.stderr)  # noqa: T201


class NodeJob(Protocol):
    """A job that the node agent runs for a generation."""

    def poll(self) -> int | None:
        """Return the exit code, or None while the job runs."""

    def stop(self) -> None:
        """Let the job save and stop."""

    def kill(self) -> None: ...


class StartsJobs(Protocol):
    """A command that starts the job of a generation."""

    def start(self, generation: JobGeneration, node_rank: int) -> NodeJob: ...


@dataclass(frozen=True)
class TrainCommand:
    """The command that all nodes of a run start: `skytrain train ARGUMENTS`."""

    arguments: Sequence[str]
    nodes: int
    processes: int
    secrets: Mapping[str, str] = field(default_factory=dict)

    def start(self, generation: JobGeneration, node_rank: int) -> NodeJob:
        place = ["--processes", str(self.processes), "--nodes", str(self.nodes), "--node-rank", str(node_rank)]
        if self.nodes > 1:
            place += ["--rendezvous", f"{generation.address}:{generation.port}"]
        joined = JoinedGeneration(generation.number, generation.rendezvous_id, generation.members)
        # A job with secrets is printed by the agent: the machine's console goes to CloudWatch, and after a failure to the store.
        output = JobOutput(None, "", "", self.secrets) if self.secrets else None
        command = [sys.executable, "-m", "skytrain", "train", *self.arguments, *place]
        return ChildJob(command, joined, output, self.secrets)


@dataclass(frozen=True)
class PrepareCommand:
    """`skytrain prepare ARGUMENTS` on one machine. If it is killed, the next one uses what it has finished."""

    arguments: Sequence[str]
    store: Store
    run: str
    secrets: Mapping[str, str] = field(default_factory=dict)

    def start(self, generation: JobGeneration, node_rank: int) -> NodeJob:
        joined = JoinedGeneration(generation.number, generation.rendezvous_id, generation.members)
        output = JobOutput(self.store, self.run, f"{generation.number:05d}", self.secrets)
        command = [sys.executable, "-m", "skytrain", "prepare", *self.arguments]
        return ChildJob(command, joined, output, self.secrets)


@dataclass(frozen=True)
class TuneCommand:
    """`skytrain tune ARGUMENTS` on one machine, as one of those that share a sweep.

    Its trials are separate runs: they belong to the sweep, not to this machine's generation.
    """

    arguments: Sequence[str]
    store: Store
    run: str
    machine: str
    secrets: Mapping[str, str] = field(default_factory=dict)

    def start(self, generation: JobGeneration, node_rank: int) -> NodeJob:
        output = JobOutput(self.store, self.run, f"{generation.number:05d}", self.secrets)
        command = [sys.executable, "-m", "skytrain", "tune", *self.arguments, f"tune.host={self.machine}"]
        return ChildJob(command, None, output, self.secrets)


@dataclass(frozen=True)
class FinishCommand:
    """`skytrain finish RUN ARGUMENTS` on one machine. If it is killed, the next one does what is missing."""

    arguments: Sequence[str]
    store: Store
    run: str  # under which the machine is launched
    secrets: Mapping[str, str] = field(default_factory=dict)

    def start(self, generation: JobGeneration, node_rank: int) -> NodeJob:
        output = JobOutput(self.store, self.run, f"{generation.number:05d}", self.secrets)
        command = [sys.executable, "-m", "skytrain", "finish", trained_run(self.run), *self.arguments]
        return ChildJob(command, None, output, self.secrets)


@dataclass(frozen=True)
class ServeCommand:
    """`skytrain serve ARGUMENTS` on one machine. It gets no secrets: it answers strangers."""

    arguments: Sequence[str]
    store: Store
    run: str

    def start(self, generation: JobGeneration, node_rank: int) -> NodeJob:
        output = JobOutput(self.store, self.run, f"{generation.number:05d}", {})
        return ServerJob([sys.executable, "-m", "skytrain", "serve", *self.arguments], None, output)


class ChildJob:
    """A child process that ends with the agent, however the agent ends: it gets SIGKILL, and its workers end with it."""

    def __init__(
        self,
        command: list[str],
        joined: JoinedGeneration | None,
        output: JobOutput | None = None,
        secrets: Mapping[str, str] | None = None,
    ) -> None:
        # In a new session, so that a terminal's Ctrl-C reaches only the agent, which then stops the job in order.
        self._process = subprocess.Popen(
            command,
            env=child_environment(
                {**(joined.environment() if joined is not None else {}), **secret_variables(secrets or {})}
            ),
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
    """A server, whose work is never done: a stop that it obeys is an interruption, and the next machine serves."""

    _stopped = False

    def stop(self) -> None:
        self._stopped = True
        super().stop()

    def poll(self) -> int | None:
        code = super().poll()
        return EXIT_CODES[INTERRUPTED] if code == 0 and self._stopped else code
