"""The processes of a job: who this one is, how they meet, and how they agree on something."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import TypeVar

from ..config import SkytrainError

T = TypeVar("T")
TIMEOUT = timedelta(minutes=30)  # a checkpoint of a large model keeps the other ranks waiting


class ToldByFirstRank(SkytrainError):
    """An error that the first rank has raised and prints; the others only stop."""


class LostRank(SkytrainError):
    """Another process of the job is gone, so this one cannot go on."""

    exit_code = 1


LOST = ("Connection closed by peer", "Connection reset by peer", "Broken pipe", "Timed out waiting", "NCCL")


@dataclass(frozen=True)
class Ranks:
    """This process among all of the job's; one alone unless torchrun started it."""

    rank: int = 0
    world_size: int = 1
    local_rank: int = 0
    local_size: int = 1

    @classmethod
    def from_environment(cls) -> Ranks:
        if "WORLD_SIZE" not in os.environ or "RANK" not in os.environ:
            return cls()
        rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        return cls(rank, world, int(os.environ.get("LOCAL_RANK", rank)), int(os.environ.get("LOCAL_WORLD_SIZE", world)))

    @property
    def first(self) -> bool:
        return self.rank == 0

    @property
    def nodes(self) -> int:
        return max(1, self.world_size // self.local_size)

    @contextmanager
    def joined(self, device: str) -> Iterator[None]:
        """A process group for the time being: gloo on the CPU and, on `cuda`, NCCL beside it for tensors there."""
        import torch
        import torch.distributed as dist

        if dist.is_initialized():  # by the caller, who keeps it
            yield
            return
        backend, here = "gloo", None
        if device == "cuda":
            here = torch.device("cuda", self.local_rank)
            torch.cuda.set_device(here)
            backend = "cpu:gloo,cuda:nccl"
        # Alone there is nobody to meet, so nothing of the network is needed.
        store = dist.HashStore() if self.world_size == 1 else None
        dist.init_process_group(
            backend, rank=self.rank, world_size=self.world_size, store=store, timeout=TIMEOUT, device_id=here
        )
        yield
        # Not after an error: the others may be waiting inside a collective, and would keep this process from ending.
        dist.destroy_process_group()

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Says what it means when a collective fails: the trace of the one that lost its peer would tell nobody why."""
        try:
            yield
        except RuntimeError as error:
            if self.world_size == 1 or not any(word in str(error) for word in LOST):
                raise
            raise LostRank(
                f"rank {self.rank} of {self.world_size} lost another rank, and stops ({str(error).splitlines()[0][:200]})\n"
                "  look for the first error among the ranks; the same command continues from the last checkpoint"
            ) from error

    def first_does(self, work: Callable[[], T]) -> T:
        """What `work` gives on the first rank, on every rank; its error is everybody's."""
        if self.world_size == 1:
            return work()
        import torch
        import torch.distributed as dist

        told: list[object] = [None, None]
        if self.first:
            try:
                told[0] = work()
            except SkytrainError as error:
                told[1] = error
                dist.broadcast_object_list([None, str(error)], src=0, device=torch.device("cpu"))
                raise
        dist.broadcast_object_list(told, src=0, device=torch.device("cpu"))
        if told[1] is not None:
            raise ToldByFirstRank(str(told[1]))
        return told[0]  # type: ignore[return-value]

    def any(self, here: bool) -> bool:
        """Whether it is so on any rank."""
        return bool(self.largest(int(here)))

    def largest(self, here: int) -> int:
        """The largest of all ranks' numbers. Goes over the CPU, so that no accelerator is waited for."""
        if self.world_size == 1:
            return int(here)
        import torch
        import torch.distributed as dist

        number = torch.tensor(int(here))
        dist.all_reduce(number, op=dist.ReduceOp.MAX)
        return int(number)

    def everyone(self, here: T) -> list[T]:
        """What each rank has, in their order."""
        if self.world_size == 1:
            return [here]
        import torch.distributed as dist

        found: list[T | None] = [None] * self.world_size
        dist.all_gather_object(found, here)
        return found  # type: ignore[return-value]
