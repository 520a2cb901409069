"""The processes of a job: the rank of this one, how they form a group, and how they agree on a value."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, TypeVar

from ..config import SkytrainError, master_address, torchrun_place

if TYPE_CHECKING:
    from torch.distributed import Store

    from .network import Network
    from .watchdog import Watchdog

T = TypeVar("T")
TIMEOUT_SECONDS = 900.0  # default, longer than the wait for an unreachable store
BACKEND_SECONDS = 30.0


class ToldByFirstRank(SkytrainError):
    """An error that rank 0, of the job or of this node, raised and prints; the other ranks only stop."""

    def __init__(self, text: str, exit_code: int = SkytrainError.exit_code) -> None:
        super().__init__(text)
        self.exit_code = exit_code


class LostRank(SkytrainError):
    """Another process of the job is lost, so this one cannot continue."""

    exit_code = 1


LOST = ("Connection closed by peer", "Connection reset by peer", "Broken pipe", "Timed out waiting", "NCCL")


@dataclass(frozen=True)
class JoinedJob:
    """The objects that belong to the joined process group; empty if the caller had joined one before."""

    watchdog: Watchdog | None = None  # None for a single process
    network: Network | None = None


@dataclass(frozen=True)
class Ranks:
    """The rank of this process in the job; a single process unless torchrun started it."""

    rank: int = 0
    world_size: int = 1
    local_rank: int = 0
    local_size: int = 1

    @classmethod
    def from_environment(cls) -> Ranks:
        place = torchrun_place()
        return cls(place.rank, place.world_size, place.local_rank, place.local_size) if place else cls()

    @property
    def first(self) -> bool:
        return self.rank == 0

    @property
    def nodes(self) -> int:
        return max(1, self.world_size // self.local_size)

    @property
    def node(self) -> int:
        return self.rank // self.local_size

    @contextmanager
    def joined(
        self, device: str, *, timeout_seconds: float = TIMEOUT_SECONDS, facts: Mapping[str, str] | None = None
    ) -> Iterator[JoinedJob]:
        """Join a process group for the duration of the context: gloo for the CPU and, on `cuda`, NCCL for the GPU.

        All ranks must have the same `facts`; otherwise all raise. A lost rank, or a collective that does not end within
        `timeout_seconds`, ends the job with a message that names it.
        """
        import torch
        import torch.distributed as dist

        from .network import set_environment

        if dist.is_initialized():  # by the caller, who also destroys it
            yield JoinedJob()
            return
        backend = "gloo"
        here = None
        gpu = None
        if device == "cuda":
            here = torch.device("cuda", self.local_rank)
            torch.cuda.set_device(here)
            backend = "cpu:gloo,cuda:nccl"
            gpu = torch.cuda.get_device_name()
        network = set_environment(device, self.nodes, master_address(), gpu)
        store, watchdog = self._meet(timeout_seconds, facts or {})
        # The backend's own timeout is a fallback, later than the watchdog's, whose message says more.
        limit = timedelta(seconds=timeout_seconds + BACKEND_SECONDS)
        with watchdog.guarding() if watchdog else nullcontext():
            dist.init_process_group(
                backend, rank=self.rank, world_size=self.world_size, store=store, timeout=limit, device_id=here
            )
            yield JoinedJob(watchdog, network)
            # Not after an error: other ranks may wait in a collective, and this process would wait for them.
            dist.destroy_process_group()
        if watchdog:
            watchdog.close()

    def _meet(self, timeout_seconds: float, facts: Mapping[str, str]) -> tuple[Store, Watchdog | None]:
        import torch.distributed as dist

        if self.world_size == 1:  # a single process needs no network
            return dist.HashStore(), None
        from .nodes import agree, meet
        from .watchdog import Watchdog

        store = meet(self)
        watchdog = Watchdog(store, self, timeout_seconds)
        agree(store, self, facts)
        watchdog.start()
        return dist.PrefixStore("default_pg", store), watchdog

    def first_does(self, work: Callable[[], T]) -> T:
        """Call `work` on rank 0, and return its result or raise its error on every rank."""
        if self.world_size == 1:
            return work()
        import torch
        import torch.distributed as dist

        told: list[object] = [None, None]
        if self.first:
            try:
                told[0] = work()
            except SkytrainError as error:
                told[1] = (str(error), error.exit_code)
                dist.broadcast_object_list(told, src=0, device=torch.device("cpu"))
                raise
        dist.broadcast_object_list(told, src=0, device=torch.device("cpu"))
        if told[1] is not None:
            raise ToldByFirstRank(*told[1])  # type: ignore[misc]
        return told[0]  # type: ignore[return-value]

    def any(self, here: bool) -> bool:
        """Return whether `here` is true on any rank."""
        return bool(self.largest(int(here)))

    def largest(self, here: int) -> int:
        """Return the largest of all ranks' numbers, exchanged on the CPU so that no rank waits for its GPU."""
        if self.world_size == 1:
            return int(here)
        import torch
        import torch.distributed as dist

        number = torch.tensor(int(here))
        dist.all_reduce(number, op=dist.ReduceOp.MAX)
        return int(number)

    def everyone(self, here: T) -> list[T]:
        """Return the values of all ranks, in order of rank."""
        if self.world_size == 1:
            return [here]
        import torch.distributed as dist

        values: list[T | None] = [None] * self.world_size
        dist.all_gather_object(values, here)
        return values  # type: ignore[return-value]
