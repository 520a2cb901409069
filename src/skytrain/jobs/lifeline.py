"""Ties a process to its supervisor: when the supervisor ends, in whatever way, the process ends too.

Linux kills a child when its parent ends (PDEATHSIG), but only after the child has asked for it. So every process of a job
asks first, before it imports anything slow, and then checks that none of its ancestors has ended meanwhile.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

SUPERVISOR = "SKYTRAIN_SUPERVISOR"  # environment variable that names the supervisor in all processes of a job
PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36


def identify(pid: int) -> str:
    """Return a process's id and start time, which together identify it: ids are reused."""
    return f"{pid}-{read_stat(pid)[19]}" if _has_proc() else str(pid)


def began_at(identity: str) -> float | None:
    """Return when a process started, in seconds since boot; None where the system does not tell."""
    ticks = identity.partition("-")[2]
    return int(ticks) / os.sysconf("SC_CLK_TCK") if ticks else None


def is_alive(identity: str) -> bool:
    """Return whether exactly that process is alive."""
    try:
        pid = int(identity.partition("-")[0])
        return lives(pid) and identify(pid) == identity
    except (OSError, ValueError, OverflowError):  # it has ended since, or never was one
        return False


def lives(pid: int) -> bool:
    """Return whether a process is alive; a zombie is not."""
    try:
        if _has_proc():
            return read_stat(pid)[0] != "Z"
        os.kill(pid, 0)
    except OSError:
        return False
    return True


def tie_to_supervisor() -> None:
    """Tie this process to its supervisor, if it was started by one, directly or through torchrun."""
    supervisor = os.environ.get(SUPERVISOR)
    if supervisor is None:
        return
    die_with_parent()
    if not is_supervised(supervisor):
        os._exit(1)  # nobody is left to report to


def die_with_parent() -> None:
    """Make Linux kill this process when the thread that started it ends."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def adopt_orphans() -> None:
    """Make this process adopt the orphans among its descendants, which would otherwise belong to init."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1)


def is_supervised(supervisor: str) -> bool:
    """Return whether the supervisor is alive and an ancestor of this process; an orphan gets another parent."""
    return is_alive(supervisor) and (not _has_proc() or int(supervisor.partition("-")[0]) in _ancestors())


def _ancestors() -> Iterator[int]:
    pid = os.getppid()
    while pid > 0:
        yield pid
        try:
            pid = int(read_stat(pid)[1])
        except OSError:  # it has ended since, so this process gets another parent
            return


def _has_proc() -> bool:
    return Path("/proc/self/stat").exists()


def read_stat(pid: int) -> list[str]:
    """Return the fields of /proc/PID/stat after the name, which is in brackets and may contain anything."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
