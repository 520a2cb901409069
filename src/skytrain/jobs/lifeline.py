"""Ties a process to its supervisor: however that ends, this one ends with it.

Linux kills a child when its parent ends (PDEATHSIG), but only from the moment that the child asked for it. So every process
of a job asks first thing, before it imports anything slow, and then checks that nobody above it has ended before that.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

SUPERVISOR = "SKYTRAIN_SUPERVISOR"  # in the environment of all processes of a job: who supervises it
PR_SET_PDEATHSIG = 1


def identify(pid: int) -> str:
    """A process by its id and start time: the id alone may be another's later."""
    return f"{pid}-{read_stat(pid)[19]}" if _has_proc() else str(pid)


def is_alive(identity: str) -> bool:
    """Whether that very process lives."""
    pid = int(identity.partition("-")[0])
    try:
        return lives(pid) and identify(pid) == identity
    except OSError:  # it has ended since
        return False


def lives(pid: int) -> bool:
    """Whether a process lives; one that has ended and waits to be collected by its parent does not."""
    try:
        if _has_proc():
            return read_stat(pid)[0] != "Z"
        os.kill(pid, 0)
    except OSError:
        return False
    return True


def tie_to_supervisor() -> None:
    """In a process that a supervisor started, directly or through torchrun; anywhere else it does nothing."""
    supervisor = os.environ.get(SUPERVISOR)
    if supervisor is None:
        return
    die_with_parent()
    if not is_supervised(supervisor):
        os._exit(1)  # nobody is left to be told


def die_with_parent() -> None:
    """Has Linux kill this process when the thread that started it ends."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def is_supervised(supervisor: str) -> bool:
    """Whether the supervisor lives and is above this process; a process whose parent has ended is put below another."""
    return is_alive(supervisor) and (not _has_proc() or int(supervisor.partition("-")[0]) in _ancestors())


def _ancestors() -> Iterator[int]:
    pid = os.getppid()
    while pid > 0:
        yield pid
        try:
            pid = int(read_stat(pid)[1])
        except OSError:  # it has ended since, so this process has or will have another parent
            return


def _has_proc() -> bool:
    return Path("/proc/self/stat").exists()


def read_stat(pid: int) -> list[str]:
    """The fields of /proc/PID/stat after the name, which stands in brackets and may hold anything: state, parent, ..."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
