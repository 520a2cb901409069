"""A group of processes on this machine, each with one thread, as torchrun would start them."""

from __future__ import annotations

import faulthandler
import os
import pickle
import socket
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing import forkserver
from pathlib import Path
from typing import Any

HANG_SECONDS = 500  # ranks that wait for each other would wait for ever


def run_ranks(world_size: int, work: Callable[..., Any], *args: Any) -> list[Any]:
    """What `work(*args)` returns on each rank. It is a function of a module, since each process imports it anew."""
    import torch.multiprocessing as mp

    with tempfile.TemporaryDirectory() as folder, _server_of_ranks():
        (Path(folder) / "given").write_bytes(pickle.dumps((dict(os.environ), pickle.dumps((work, args)))))
        mp.start_processes(_rank, (world_size, _free_port(), folder), nprocs=world_size, start_method="forkserver")
        return [pickle.loads((Path(folder) / str(rank)).read_bytes()) for rank in range(world_size)]


@contextmanager
def _server_of_ranks() -> Iterator[None]:
    """Start a server that imports what ranks need, which takes longer than the work of most, and forks every rank.

    A process has one such server. Others would find modules in it that were imported with the environment of now.
    """
    forkserver._forkserver._stop()
    forkserver.set_forkserver_preload(["lightning.pytorch", "torch.distributed.fsdp", "torch._dynamo"])
    try:
        yield
    finally:
        forkserver._forkserver._stop()


def _rank(rank: int, world_size: int, port: int, folder: str) -> None:
    import torch

    alive()
    faulthandler.enable()  # a rank that a library ends says where it was
    torch.set_num_threads(1)
    environment, given = pickle.loads((Path(folder) / "given").read_bytes())
    os.environ.clear()  # the server has that of its start
    os.environ.update(
        environment,
        RANK=str(rank),
        WORLD_SIZE=str(world_size),
        LOCAL_RANK=str(rank),
        LOCAL_WORLD_SIZE=str(world_size),
        MASTER_ADDR="127.0.0.1",
        MASTER_PORT=str(port),
    )
    from skytrain.jobs import Ranks

    with Ranks.from_environment().joined("cpu"):
        work, args = pickle.loads(given)
        result = work(*args)
    (Path(folder) / str(rank)).write_bytes(pickle.dumps(result))


def alive() -> None:
    """From now on a rank has HANG_SECONDS again; long work says so from time to time."""
    faulthandler.dump_traceback_later(HANG_SECONDS, exit=True)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
