"""TensorBoard over runs of the store: their event files in one local folder that is kept up to date."""

from __future__ import annotations

import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path

from ..config import Config, MissingExtra, SkytrainError, child_environment
from ..jobs import die_with_parent
from ..runs import EventCopies
from ..storage import StoreError, open_store
from ..targets import find_status

PORT = 6006  # TensorBoard's own default
REFRESH_SECONDS = 10.0
STOP_SECONDS = 10.0


class BoardFolder:
    """A folder with a copy of the event files of each run, and of no other file.

    TensorBoard obeys other files, too: one for its projector can name any file of this computer.
    """

    def __init__(self, config: Config, runs: Sequence[str], folder: Path) -> None:
        store = open_store(config.store)
        for run in runs:
            find_status(store, run)  # raises if there is no such run
        self._copies = [EventCopies(store, run, folder / run) for run in runs]

    def refresh(self) -> None:
        for copies in self._copies:
            copies.refresh()


@contextmanager
def running_board(folder: Path, host: str, port: int) -> Iterator[subprocess.Popen[bytes]]:
    """Run TensorBoard for the time of this block. It ends with this process, however that ends."""
    command = [sys.executable, "-m", "tensorboard.main", "--logdir", str(folder), "--host", host, "--port", str(port)]
    process = subprocess.Popen(command, env=child_environment({}), preexec_fn=die_with_parent)
    try:
        yield process
    finally:
        process.terminate()
        with suppress(subprocess.TimeoutExpired):
            process.wait(STOP_SECONDS)
        process.kill()
        process.wait()


def serve_board(board: BoardFolder, process: subprocess.Popen[bytes], tell: Callable[[str], None]) -> int:
    """Keep the copies up to date while TensorBoard runs; return its exit code."""
    silent = False
    due = 0.0
    while (code := process.poll()) is None:
        if time.monotonic() >= due:
            due = time.monotonic() + REFRESH_SECONDS
            try:
                board.refresh()
                silent = False
            except StoreError as error:
                if not silent:
                    tell(f"warning: {error}\n  asking again every few seconds")
                silent = True
        with suppress(subprocess.TimeoutExpired):
            process.wait(max(0.0, due - time.monotonic()))
    return code


def check_installed() -> None:
    if find_spec("tensorboard") is None:
        raise MissingExtra("tensorboard", "train")


def choose_port(host: str, wanted: int | None) -> int:
    """Return the wanted port, else TensorBoard's default port, or any free port if that is taken."""
    for port in [wanted] if wanted is not None else [PORT, 0]:
        with socket.socket() as taken:
            taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                taken.bind((host, port))
                return int(taken.getsockname()[1])
            except OSError as error:
                if wanted is not None:
                    raise SkytrainError(
                        f"--port {wanted}: {error.strerror}\n  give another one, or none: a free one is chosen then"
                    ) from None
    raise SkytrainError(f"no port is free on {host}")
