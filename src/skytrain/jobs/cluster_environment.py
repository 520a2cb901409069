"""The job's processes as Lightning sees them: all exist already, so Lightning starts none."""

from __future__ import annotations

from lightning.pytorch.plugins.environments import ClusterEnvironment

from .ranks import Ranks


class RanksEnvironment(ClusterEnvironment):
    """The ranks that torchrun started, or one process. Their process group exists before Lightning is used."""

    def __init__(self, ranks: Ranks) -> None:
        super().__init__()
        self._ranks = ranks

    @property
    def creates_processes_externally(self) -> bool:
        return True

    @property
    def main_address(self) -> str:
        raise AssertionError("the process group exists already")

    @property
    def main_port(self) -> int:
        raise AssertionError("the process group exists already")

    @staticmethod
    def detect() -> bool:
        return False

    def world_size(self) -> int:
        return self._ranks.world_size

    def set_world_size(self, size: int) -> None:
        assert size == self._ranks.world_size

    def global_rank(self) -> int:
        return self._ranks.rank

    def set_global_rank(self, rank: int) -> None:
        assert rank == self._ranks.rank

    def local_rank(self) -> int:
        return self._ranks.local_rank

    def node_rank(self) -> int:
        return self._ranks.rank // self._ranks.local_size
