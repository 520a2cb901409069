"""Finding and killing all processes of a job, in any session and under any parent."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from .lifeline import SUPERVISOR, is_alive, lives, read_stat

KILL_SECONDS = 5.0  # how long killed processes may take to end; one that waits for a device may need longer
PROC = Path("/proc")
CONTROL_GROUPS = "skytrain-"


def descendants(pid: int) -> list[int]:
    """Return all descendants of a living process, from /proc; without it, workers end when their sockets close."""
    parents = {}
    for path in PROC.glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it has ended since
            parents[int(path.name)] = int(read_stat(int(path.name))[1])
    pids: list[int] = []
    front = {pid}
    while front:
        front = {child for child, parent in parents.items() if parent in front}
        pids.extend(front)
    return pids


def kill_descendants() -> None:
    """Kill all descendants of this process. With `adopt_orphans`, those whose parents have ended are among them.

    Use it only in a process that started nothing else.
    """
    _kill_all(lambda: [pid for pid in descendants(os.getpid()) if lives(pid)])


def kill_session(leader: int) -> None:
    """Kill the processes of the session that a process began, even if it has ended: its number is then not reused.

    A process that sets its title (setproctitle) overwrites its environment, but not its session.
    """

    def members() -> list[int]:
        members = []
        for path in PROC.glob("[0-9]*"):
            with contextlib.suppress(OSError):  # it has ended since
                state, _, _, session = read_stat(int(path.name))[:4]
                if session == str(leader) and state != "Z":
                    members.append(int(path.name))
        return members

    _kill_all(members)


def processes_with(variable: str, value: str) -> list[int]:
    """Return all other living processes that inherited an environment variable with this value."""
    mark = f"{variable}={value}".encode()
    pids = []
    for path in PROC.glob("[0-9]*/environ"):
        with contextlib.suppress(OSError):  # it has ended since, or belongs to another user
            if mark in path.read_bytes().split(b"\0"):
                pids.append(int(path.parent.name))
    return [pid for pid in pids if pid != os.getpid()]


def supervised_by(supervisor: str) -> list[int]:
    """Return all living processes that were started under a supervisor."""
    return processes_with(SUPERVISOR, supervisor)


def kill_processes_with(variable: str, value: str) -> None:
    """Kill the processes that `processes_with` returns, and return when they have ended or cannot be killed."""
    _kill_all(lambda: processes_with(variable, value))


def _kill_all(living: Callable[[], list[int]]) -> None:
    deadline = time.monotonic() + KILL_SECONDS
    # Repeatedly: a process may start another one while it is being killed.
    while (left := living()) and time.monotonic() < deadline:
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.01)


@dataclass(frozen=True)
class ControlGroup:
    """The cgroup of one job, if this user may create one: the kernel can then kill all of it at once."""

    folder: Path

    @classmethod
    def create(cls, supervisor: str) -> ControlGroup | None:
        above = _own_folder()
        if above is None:
            return None
        group = cls(above / f"{CONTROL_GROUPS}{supervisor}")
        try:
            _sweep(above)
            group.folder.mkdir()
            if not (group.folder / "cgroup.kill").exists():  # before Linux 5.14
                group.folder.rmdir()
                return None
        except OSError:  # not permitted, as in most containers
            return None
        return group

    def enter(self) -> None:
        """Move the calling process, and those that it starts later, into the group."""
        with contextlib.suppress(OSError):  # refused after all; processes are still found by their environment
            (self.folder / "cgroup.procs").write_text("0")

    def kill(self) -> None:
        with contextlib.suppress(OSError):  # removed: it was empty, and another supervisor took it for a leftover
            (self.folder / "cgroup.kill").write_text("1")

    def remove(self) -> None:
        """Remove the group if it is empty; Linux refuses otherwise."""
        with contextlib.suppress(OSError):
            self.folder.rmdir()


def _own_folder() -> Path | None:
    """Return the folder of this process's group in cgroup v2."""
    try:
        mounts = (line.split() for line in (PROC / "self/mountinfo").read_text().splitlines())
        root = next(Path(words[4]) for words in mounts if words[words.index("-") + 1] == "cgroup2")
        own = (PROC / "self/cgroup").read_text().splitlines()
        path = next(line.removeprefix("0::/") for line in own if line.startswith("0::/"))
    except (OSError, StopIteration):
        return None
    return root / path


def _sweep(above: Path) -> None:
    """Remove empty groups of former supervisors, but kill nothing: one may live where its pid is not visible."""
    for folder in above.glob(f"{CONTROL_GROUPS}*"):
        if not is_alive(folder.name.removeprefix(CONTROL_GROUPS)):
            ControlGroup(folder).remove()


def kill_job(supervisor: str, group: ControlGroup | None) -> None:
    """Kill every process of the job except the supervisor, and return when they have ended or cannot be killed."""
    if group is not None:
        group.kill()
    kill_processes_with(SUPERVISOR, supervisor)
