"""How workers and the process that supervises them tell each other things: files in a folder that the supervisor makes.

Exit codes cannot do it: torchrun takes any code but 0 for a crash, starts the workers again, and itself ends with 1.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import sys
from dataclasses import dataclass
from pathlib import Path

from ..config import SkytrainError
from ..storage import AccessDenied, NotFound, StoreError

VARIABLE = "SKYTRAIN_SUPERVISED"


@dataclass(frozen=True)
class Supervision:
    """The folder, seen from both sides."""

    folder: Path

    @classmethod
    def from_environment(cls) -> Supervision | None:
        """A worker's way to its supervisor; None where nobody supervises."""
        folder = os.environ.get(VARIABLE)
        return cls(Path(folder)) if folder else None

    # The worker's side.

    def arrive(self, local_rank: int) -> None:
        """Once signals are taken care of: from here on they may be sent to this process."""
        die_with_parent()
        if not self.folder.is_dir():  # the supervisor ended while this process was starting
            raise SystemExit(1)
        self._put(f"pid-{local_rank}", str(os.getpid()))

    def report_outcome(self, outcome: str) -> None:
        self._put("outcome", outcome)

    def report_error(self, error: SkytrainError) -> None:
        """An error that another start would only repeat ends the job; any other is left to look like a crash."""
        passes = isinstance(error, StoreError) and not isinstance(error, AccessDenied | NotFound)
        if error.exit_code != 1 and not passes:
            self._put("error", json.dumps({"exit_code": error.exit_code, "message": str(error)}))

    def _put(self, name: str, text: str) -> None:
        part = self.folder / f".{name}.{os.getpid()}"
        part.write_text(text)
        part.replace(self.folder / name)

    # The supervisor's side.

    def workers(self) -> set[int]:
        """Process ids of the workers that can take a signal."""
        return {int(path.read_text()) for path in self.folder.glob("pid-*")}

    def forget_workers(self) -> None:
        for path in self.folder.glob("pid-*"):
            path.unlink()

    def outcome(self) -> str | None:
        return self._get("outcome")

    def error_code(self) -> int | None:
        text = self._get("error")
        return None if text is None else int(json.loads(text)["exit_code"])

    def _get(self, name: str) -> str | None:
        path = self.folder / name
        return path.read_text() if path.exists() else None


def die_with_parent() -> None:
    """Linux ends this process when the one that started it ends, however that happened: no worker outlives its job."""
    if sys.platform == "linux":
        pr_set_pdeathsig = 1
        ctypes.CDLL(None).prctl(pr_set_pdeathsig, signal.SIGKILL)
