"""The machines of a run as the node agent sees them: what it requests when its work on one is over.

A launch target implements this with its cloud's API. Without one, machines belong to whoever started the agent.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol


class RentedMachines(Protocol):
    """The requests that a launch target implements. They may fail and be repeated: each must be idempotent."""

    def end_run(self, exit_code: int) -> bool:
        """Note that the run is over; called by each host before its machine ends. False: it must be asked again."""

    def set_desired(self, count: int) -> bool:
        """Ask for this many machines: 0 when the run is over, whatever its outcome. False: it must be asked again."""

    def keep_waiting(self) -> bool:
        """Keep this machine, which has not proved itself yet; called every half hour. False: no proof is needed."""

    def prove(self, progress: int) -> None:
        """Note that this machine took part in lasting progress: from now on it is worth replacing."""

    def lack_nodes(self, ready: int, wanted: int, seconds: float) -> str | None:
        """Note that too few nodes have been ready for this long; called once a minute by one of the waiting hosts.

        Returns why the run must end, if no machine can be had any more.
        """

    def delete_groups(self) -> None:
        """Give back everything that was rented for the run; node 0's last act."""

    def replace_me(self, reason: str) -> None:
        """Report this machine as unfit, so that another one replaces it."""

    def terminate_me(self) -> None:
        """End this machine; called last."""


class LocalMachines:
    """Machines that are not rented: leaving only ends the process."""

    def __init__(self, tell: Callable[[str], None]) -> None:
        self._tell = tell

    def end_run(self, exit_code: int) -> bool:
        return True

    def set_desired(self, count: int) -> bool:
        return True

    def keep_waiting(self) -> bool:
        return False

    def prove(self, progress: int) -> None:
        return

    def lack_nodes(self, ready: int, wanted: int, seconds: float) -> str | None:
        return None

    def delete_groups(self) -> None:
        return

    def replace_me(self, reason: str) -> None:
        self._tell(f"this machine should be replaced: {reason}")

    def terminate_me(self) -> None:
        return
