"""The reports of workers to their supervisor: files in a folder that the supervisor creates.

Exit codes are not enough: torchrun treats any code but 0 as a crash, and itself exits with 1.
"""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path

from ..config import SkytrainError, variable
from .lifeline import SUPERVISOR, began_at, identify, is_supervised

VARIABLE = "SKYTRAIN_SUPERVISED"
GENERATION = "SKYTRAIN_GENERATION"
CRASH = 1
OWNER_FILE = "supervisor"


@dataclass(frozen=True)
class JobError:
    """An error that a worker reported before it ended. A restart would only repeat it, or wait for the store again."""

    exit_code: int
    message: str


@dataclass(frozen=True)
class ClaimedAttempt:
    """The attempt that the workers make at a run, and the step from which it resumes."""

    run: str
    number: int
    step: int


@dataclass(frozen=True)
class JoinedGeneration:
    """The generation whose job the processes of this host run; the node agent puts it into their environment."""

    number: int
    rendezvous_id: str
    members: tuple[str, ...]

    @classmethod
    def from_environment(cls) -> JoinedGeneration | None:
        text = variable(GENERATION)
        if text is None:
            return None
        facts = json.loads(text)
        return cls(facts["number"], facts["rendezvous_id"], tuple(facts["members"]))

    def environment(self) -> dict[str, str]:
        return {GENERATION: json.dumps(asdict(self))}


class ResumeProgress:
    """The progress of a job, judged by the steps from which its attempts resume."""

    def __init__(self) -> None:
        self._step: int | None = None

    def made(self, resumed_step: int | None) -> bool:
        """Return whether an attempt has resumed from a newer commit than the last one seen; None means no resume."""
        before = self._step
        self._step = before if resumed_step is None else resumed_step
        return before is not None and resumed_step is not None and resumed_step > before


@dataclass(frozen=True)
class Supervision:
    """The folder of reports, as both sides use it."""

    folder: Path
    supervisor: str  # its process id and start time

    @classmethod
    def begin(cls, folder: Path) -> Supervision:
        """Begin in the folder for the workers' reports, and say whose it is; called in the supervisor."""
        supervisor = identify(os.getpid())
        (folder / OWNER_FILE).write_text(supervisor)
        return cls(folder, supervisor)

    @classmethod
    def from_environment(cls) -> Supervision | None:
        """Return the supervision that a worker was started under; None without a supervisor."""
        folder = variable(VARIABLE)
        supervisor = variable(SUPERVISOR)
        return cls(Path(folder), supervisor) if folder and supervisor else None

    def environment(self) -> dict[str, str]:
        return {VARIABLE: str(self.folder), SUPERVISOR: self.supervisor}

    # The worker's side.

    def arrive(self, local_rank: int) -> None:
        """Report that signal handlers are set: from here on signals may be sent to this process."""
        self._put(f"pid-{local_rank}", str(os.getpid()))

    def check(self) -> None:
        """End a worker whose supervisor is gone: the run may belong to another supervisor by now."""
        if not is_supervised(self.supervisor):
            raise SystemExit(CRASH)

    def report_resume(self, step: int) -> None:
        """Report the step this attempt resumes from, which shows whether the previous one made progress."""
        self._put("resumed", str(step))

    def report_claim(self, claim: ClaimedAttempt) -> None:
        """Report which attempt the workers make, so that the supervisor can record its end if it has to kill them."""
        self._put("attempt", json.dumps(asdict(claim)))

    def report_outcome(self, outcome: str) -> None:
        self._put("outcome", outcome)

    def report_error(self, error: SkytrainError) -> None:
        """Report an error that has its own exit code; a lost peer counts as a crash."""
        code = error.exit_code
        if code != CRASH:
            self._put("error", json.dumps({"exit_code": code, "message": str(error)}))

    def _put(self, name: str, text: str) -> None:
        # In a run of weeks, a clean-up of temporary files may have removed the folder.
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        part = self.folder / f".{name}.{os.getpid()}"
        part.write_text(text)
        part.replace(self.folder / name)

    # The supervisor's side.

    def workers(self) -> set[int]:
        """Return the process ids of the workers that have called `arrive` since the last `forget`."""
        return {int(path.read_text()) for path in self.folder.glob("pid-*")}

    def forget(self) -> None:
        """Remove the reports of former workers, before new ones are started."""
        for name in ("pid-*", "error", "attempt"):
            for path in self.folder.glob(name):
                path.unlink(missing_ok=True)

    def outcome(self) -> str | None:
        return self._get("outcome")

    def error(self) -> JobError | None:
        text = self._get("error")
        return None if text is None else JobError(**json.loads(text))

    def resumed_step(self) -> int | None:
        text = self._get("resumed")
        return None if text is None else int(text)

    def claim(self) -> ClaimedAttempt | None:
        """Return the attempt that the workers have claimed since the last `forget`; None if there is none."""
        text = self._get("attempt")
        return None if text is None else ClaimedAttempt(**json.loads(text))

    def _get(self, name: str) -> str | None:
        path = self.folder / name
        return path.read_text() if path.exists() else None


def job_began() -> float | None:
    """Return when this job's command started, in seconds since boot; None without a supervisor."""
    supervision = Supervision.from_environment()
    return None if supervision is None else began_at(supervision.supervisor)


def report_attempt(local_rank: int, claim: ClaimedAttempt) -> None:
    """Tell this node's supervisor, if there is one, which attempt was claimed; called on every rank."""
    supervision = Supervision.from_environment()
    if supervision is not None and local_rank == 0:
        supervision.report_claim(claim)
        supervision.report_resume(claim.step)
