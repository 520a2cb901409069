"""Signals to `skytrain train` before its supervisor handles them: while modules are imported and settings are read."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from types import FrameType

from ..config import is_worker, variable
from .lifeline import SUPERVISOR

# Slurm sends USR1 before a job ends; a terminal sends HUP when it is closed.
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGHUP)
PROGRAM = "skytrain"  # as it is installed; whoever imports the modules of its commands keeps their own signals
INTERRUPTED_EXIT_CODE = 12  # as in EXIT_CODES, whose module takes too long to import here


def handle_early_signals(arguments: Sequence[str]) -> None:
    """Let a signal end `skytrain train` or `skytrain node` with its own exit code, and Ctrl-C any command while it starts.

    Workers handle signals themselves, once they arrive.
    """
    if _ends_by_signal(arguments):
        for number in handled_signals():
            signal.signal(number, _exit)
    elif Path(sys.argv[0]).name == PROGRAM and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _exit)  # Ctrl-C while modules are imported: no traceback


def handle_interrupts() -> None:
    """Let Ctrl-C be an exception again, once everything is imported. `train` and `node` handle their signals themselves."""
    if signal.getsignal(signal.SIGINT) is _exit and not _ends_by_signal(sys.argv[1:]):
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _ends_by_signal(arguments: Sequence[str]) -> bool:
    command = next((word for word in arguments if word != "--debug"), None)
    return command in ("train", "node") and variable(SUPERVISOR) is None and not is_worker()


def handled_signals() -> list[signal.Signals]:
    """Return the signals that stop a job. Under nohup, SIGHUP is ignored and stays ignored."""
    return [each for each in SIGNALS if each != signal.SIGHUP or signal.getsignal(each) != signal.SIG_IGN]


def _exit(number: int, frame: FrameType | None) -> None:
    # At once: an exception could be swallowed by an import that tolerates errors, and there is nothing to clean up.
    os.write(2, f"{signal.Signals(number).name} received: stopping\n".encode())
    os._exit(INTERRUPTED_EXIT_CODE)
