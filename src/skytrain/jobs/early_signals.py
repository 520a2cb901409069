"""Signals to `skytrain train` before its supervisor handles them: while modules are imported and settings are read."""

from __future__ import annotations

import os
import signal
from collections.abc import Sequence
from types import FrameType

from ..config import is_worker, variable
from .lifeline import SUPERVISOR

# Slurm sends USR1 before a job ends; a terminal sends HUP when it is closed.
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGHUP)
INTERRUPTED_EXIT_CODE = 12  # as in EXIT_CODES, whose module takes too long to import here


def handle_early_signals(arguments: Sequence[str]) -> None:
    """Let a signal end `skytrain train` or `skytrain node` with its own exit code.

    Workers handle signals themselves, once they arrive.
    """
    command = next((word for word in arguments if word != "--debug"), None)
    if command in ("train", "node") and variable(SUPERVISOR) is None and not is_worker():
        for number in handled_signals():
            signal.signal(number, _exit)


def handled_signals() -> list[signal.Signals]:
    """Return the signals that stop a job. Under nohup, SIGHUP is ignored and stays ignored."""
    return [each for each in SIGNALS if each != signal.SIGHUP or signal.getsignal(each) != signal.SIG_IGN]


def _exit(number: int, frame: FrameType | None) -> None:
    # At once: an exception could be swallowed by an import that tolerates errors, and there is nothing to clean up.
    os.write(2, f"{signal.Signals(number).name} received: stopping\n".encode())
    os._exit(INTERRUPTED_EXIT_CODE)
