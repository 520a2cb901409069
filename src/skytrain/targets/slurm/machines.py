"""The nodes of a Slurm job, as the node agent sees them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from .cluster import drain_node
from .requests import OVER


class SlurmMachines:
    """The scheduler owns the nodes: the agent only says whether the job is to be requeued."""

    def __init__(self, folder: Path, node: str, tell: Callable[[str], None]) -> None:
        self._folder = folder
        self._node = node
        self._tell = tell

    def end_run(self, exit_code: int) -> None:
        return

    def set_desired(self, count: int) -> None:
        """Mark the run as over: the batch script then does not requeue the job."""
        self._folder.mkdir(parents=True, exist_ok=True)
        (self._folder / OVER).touch()

    def lack_nodes(self, ready: int, wanted: int, seconds: float) -> None:
        return

    def delete_groups(self) -> None:
        return

    def replace_me(self, reason: str) -> None:
        """Drain the node, so that the requeued job gets another. A user who may not drain nodes must see to it."""
        if drain_node(self._node, reason):
            self._tell(f"node {self._node} is drained, and the job requeued: {reason}")
        else:
            self._tell(f"node {self._node} is unfit, and only an administrator may drain it: {reason}")
            self.set_desired(0)

    def terminate_me(self) -> None:
        return
