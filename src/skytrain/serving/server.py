"""Runs a vLLM server as a child process: starts it, waits until it answers, and ends it with everything it started."""

from __future__ import annotations

import os
import re
import secrets
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from ..config import SkytrainError, format_seconds
from ..jobs import kill_processes_with, kill_session
from .client import Endpoint, EndpointError
from .engine import VllmEngine, clean_environment
from .settings import ServerSettings

POLL_SECONDS = 0.5
LAST_LINES = 25
STOP_SECONDS = 25.0  # longer than the keeper waits
KEY_VARIABLE = "VLLM_API_KEY"
MARK_VARIABLE = "SKYTRAIN_SERVER"  # marks a server's processes, so that they are found by their environment
PREFIX = re.compile(r"^(\([^)]*\) )?(INFO|WARNING|ERROR) [\d: -]+\[[^\]]+\] ")


class ServerEnded(SkytrainError):
    """The server ended, or was not ready in time."""

    exit_code = 1


class KeptServer:
    """A server as a child process, which ends with this one, with everything that it started. Its output goes to a log."""

    def __init__(self, name: str, command: Sequence[str], environment: dict[str, str], log: Path) -> None:
        self._name = name
        self._command = command
        self._environment = environment
        self.log = log
        self._process: subprocess.Popen[bytes] | None = None
        self._pipe: int | None = None
        self._guard: subprocess.Popen[bytes] | None = None
        self._alive = -1  # a pipe that is open as long as this process or the keeper lives
        self._mark = secrets.token_hex(8)

    def start(self) -> None:
        self.log.parent.mkdir(parents=True, exist_ok=True)
        environment = {**self._environment, MARK_VARIABLE: self._mark}
        reading, self._pipe = os.pipe()  # Python closes both in other children, so only this process holds the end
        guarded, self._alive = os.pipe()
        keeper = [sys.executable, "-c", _KEEPER, str(reading), *self._command]
        try:
            with self.log.open("wb") as output:
                self._process = subprocess.Popen(
                    keeper, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT, env=environment,
                    pass_fds=(reading, self._alive), start_new_session=True, cwd=self.log.parent,
                )  # fmt: skip
            guard = ["/bin/sh", "-c", _GUARD, str(self._process.pid)]
            self._guard = subprocess.Popen(
                guard, stdin=guarded, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
            )
        finally:
            os.close(reading)
            os.close(guarded)
            if self._guard is None:
                os.close(self._alive)

    def check(self) -> None:
        """Raise ServerEnded if the server has ended."""
        assert self._process is not None, "start it first"
        code = self._process.poll()
        if code is not None:
            raise ServerEnded(f"{self._name} ended with exit code {code}\n{self._tail()}")

    def stop(self) -> None:
        """End the server and everything that it started. It may be called twice."""
        if self._pipe is not None:
            os.close(self._pipe)
            self._pipe = None
        if self._process is not None:
            try:
                self._process.wait(STOP_SECONDS)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
            # Processes that outlived a killed keeper: vLLM's, whose titles overwrite their environment, and others.
            kill_session(self._process.pid)
            kill_processes_with(MARK_VARIABLE, self._mark)
        if self._guard is not None:
            self._guard.kill()
            self._guard.wait()
            os.close(self._alive)
            self._guard = None

    def last_line(self) -> str:
        lines = self._lines()
        return PREFIX.sub("", lines[-1]).strip() if lines else ""

    def _lines(self) -> list[str]:
        try:
            with self.log.open("rb") as file:
                file.seek(max(0, self.log.stat().st_size - 16384))
                return [line for line in file.read().decode(errors="replace").splitlines() if line.strip()]
        except OSError:
            return []

    def _tail(self) -> str:
        lines = "\n".join(f"  | {line}" for line in self._lines()[-LAST_LINES:])
        return f"{lines}\n  the complete log: {self.log}"


class VllmServer(KeptServer):
    """vLLM. Its key goes only to its environment, never to its command line."""

    def __init__(self, settings: ServerSettings, engine: VllmEngine, key: str, log: Path) -> None:
        environment = clean_environment(engine.own_environment) | settings.environment
        super().__init__("vLLM", settings.command, environment | {KEY_VARIABLE: key}, log)

    def wait_until_ready(self, endpoint: Endpoint, limit_seconds: float, waited: Callable[[float, str], None]) -> None:
        """Wait until the server answers with its models. Raises ServerEnded if it ends, or is not ready in time.

        `waited` is called with the seconds so far and the last line of the log; it may raise to end the wait.
        """
        began = time.monotonic()
        while True:
            self.check()
            seconds = time.monotonic() - began
            waited(seconds, self.last_line())
            try:
                endpoint.models()
                return
            except EndpointError as error:
                if error.status is not None and error.status < 500:
                    raise
            if seconds > limit_seconds:
                raise ServerEnded(
                    f"the server did not answer within {format_seconds(round(limit_seconds))} (serve.start)\n{self._tail()}"
                )
            time.sleep(POLL_SECONDS)


# Kills the process group $0, which the keeper leads, after this process and the keeper were killed at the same time.
_GUARD = "read -r _; kill -s KILL -- -$0"
# By a path and not by -m, so that the keeper finds this Skytrain even if vLLM's environment has no PYTHONPATH.
_KEEPER = f"import sys; sys.path.insert(0, {str(Path(__file__).parents[2])!r}); from skytrain.serving.keeper import main; main()"
