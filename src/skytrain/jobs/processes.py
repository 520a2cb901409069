"""Finds and kills all processes of a job, whatever session they are in and whoever their parent is by now."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from dataclasses import dataclass
from pathlib import Path

from .lifeline import SUPERVISOR, is_alive, read_stat

KILL_SECONDS = 5.0  # for killed processes to be gone; one that waits for a device may take longer, and is left
PROC, CONTROL_GROUPS = Path("/proc"), "skytrain-"


def descendants(pid: int) -> list[int]:
    """Of a process that lives, as Linux lists them; elsewhere workers end when their sockets close."""
    parents = {}
    for path in PROC.glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it has ended since
            parents[int(path.name)] = int(read_stat(int(path.name))[1])
    found: list[int] = []
    front = {pid}
    while front:
        front = {child for child, parent in parents.items() if parent in front}
        found.extend(front)
    return found


def supervised_by(supervisor: str) -> list[int]:
    """All processes that live and were started under a supervisor, found by the environment that they inherited."""
    mark, found = f"{SUPERVISOR}={supervisor}".encode(), []
    for path in PROC.glob("[0-9]*/environ"):
        with contextlib.suppress(OSError):  # it has ended since, or is another user's
            if mark in path.read_bytes().split(b"\0"):
                found.append(int(path.parent.name))
    return [pid for pid in found if pid != os.getpid()]


@dataclass(frozen=True)
class ControlGroup:
    """A cgroup of a job's own, where this user may make one: the kernel then kills all of it at once."""

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
        except OSError:  # not ours to divide, as in most containers
            return None
        return group

    def enter(self) -> None:
        """Moves the calling process into it; those that it starts follow."""
        with contextlib.suppress(OSError):  # refused after all: its processes are still found by their environment
            (self.folder / "cgroup.procs").write_text("0")

    def kill(self) -> None:
        with contextlib.suppress(OSError):  # gone: it was empty, and another supervisor took it for left behind
            (self.folder / "cgroup.kill").write_text("1")

    def remove(self) -> None:
        """Where it is empty; one that is not, Linux keeps."""
        with contextlib.suppress(OSError):
            self.folder.rmdir()


def _own_folder() -> Path | None:
    """Of this process, in cgroup v2."""
    try:
        mounts = (line.split() for line in (PROC / "self/mountinfo").read_text().splitlines())
        root = next(Path(words[4]) for words in mounts if words[words.index("-") + 1] == "cgroup2")
        own = (PROC / "self/cgroup").read_text().splitlines()
        path = next(line.removeprefix("0::/") for line in own if line.startswith("0::/"))
    except (OSError, StopIteration):
        return None
    return root / path


def _sweep(above: Path) -> None:
    """Removes what supervisors that are gone have left. Nothing is killed: one may live where its process id is not seen."""
    for folder in above.glob(f"{CONTROL_GROUPS}*"):
        if not is_alive(folder.name.removeprefix(CONTROL_GROUPS)):
            ControlGroup(folder).remove()


def kill_job(supervisor: str, group: ControlGroup | None) -> None:
    """Every process of the job but the supervisor. Returns when they are gone, or cannot be killed."""
    deadline = time.monotonic() + KILL_SECONDS
    if group is not None:
        group.kill()
    # Again and again: a process may start another while it is being killed.
    while (left := supervised_by(supervisor)) and time.monotonic() < deadline:
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.01)
