"""Before the processes of a job form a group: find the rendezvous, wait for each other, compare setups."""

from __future__ import annotations

import contextlib
import hashlib
import json
import platform
import socket
import time
from collections.abc import Iterable, Mapping
from datetime import timedelta
from typing import TYPE_CHECKING

from .. import __version__
from ..config import Config, SkytrainError, flatten, master_address, master_port, source_files
from ..runs import plain
from .network import address_towards
from .ranks import Ranks, ToldByFirstRank

if TYPE_CHECKING:
    from torch.distributed import Store

START_SECONDS = 300.0  # limit on how far apart processes of one job start: a cold import of torch takes a minute
NODES_OWN = ("loader.cache_dir",)  # settings that may differ between nodes
SHOWN = 5  # number of differences named in a message


class NodesDiffer(SkytrainError):
    """Two nodes of a job do not run the same code or configuration."""


class NoRendezvous(SkytrainError):
    """The processes of a job did not find each other."""

    exit_code = 1


def check_reachable(endpoint: str, timeout_seconds: float = 60.0) -> None:
    """Wait until something listens at `host:port`; after `timeout_seconds` raise NoRendezvous with the reason."""
    host, _, port = endpoint.rpartition(":")
    if not host or not port.isdigit():
        raise SkytrainError(
            f"rendezvous {endpoint!r} is not host:port\n  give the first node's address, such as 10.0.0.5:29500"
        )
    deadline = time.monotonic() + timeout_seconds
    while True:
        left = deadline - time.monotonic()
        try:
            with socket.create_connection((host, int(port)), timeout=max(0.1, min(left, 5.0))):
                return
        except OSError as error:
            if deadline - time.monotonic() <= 0:
                raise NoRendezvous(_unreachable(endpoint, timeout_seconds, str(error))) from None
            time.sleep(min(0.5, max(0.0, left)))


def _unreachable(endpoint: str, seconds: float, reason: str) -> str:
    return (
        f"nothing answers at the rendezvous {endpoint} after {seconds:.0f} s, asked from {platform.node()} ({reason})\n"
        "  check that the first node has started, that this is its address, and that firewalls (on AWS: one security "
        "group that admits itself) pass this port and all others between the nodes"
    )


def meet(ranks: Ranks, timeout_seconds: float = START_SECONDS) -> Store:
    """Return the store that the processes share, at MASTER_ADDR:MASTER_PORT."""
    import torch.distributed as dist

    endpoint = rendezvous_endpoint()
    try:
        handlers = dist.rendezvous("env://", ranks.rank, ranks.world_size, timeout=timedelta(seconds=timeout_seconds))
        store: Store = next(iter(handlers))[0]
    except (dist.DistNetworkError, dist.DistStoreError) as error:
        raise NoRendezvous(_unreachable(endpoint, timeout_seconds, str(error).splitlines()[0][:200])) from None
    return store


def rendezvous_endpoint() -> str:
    address = master_address()
    port = master_port()
    missing = [name for name, value in (("MASTER_ADDR", address), ("MASTER_PORT", port)) if not value]
    if missing:
        raise SkytrainError(
            f"RANK and WORLD_SIZE are set, but not {' and '.join(missing)}\n  start the processes with torchrun, or unset them to run one process"
        )
    return f"{address}:{port}"


def host_name() -> str:
    """Return the name of this host, and the address at which the job's other hosts see it."""
    address = address_towards(master_address() or "")
    return f"{platform.node()} {address}" if address else platform.node()


def node_facts(config: Config) -> dict[str, str]:
    """Return what must be equal on all nodes: versions, Skytrain's source files, settings."""
    import torch

    settings = {
        f"setting {key}": json.dumps(value) for key, value in flatten(plain(config)).items() if key not in NODES_OWN
    }
    return {
        "skytrain": __version__,
        "torch": torch.__version__,
        "python": ".".join(platform.python_version_tuple()[:2]),
        **settings,
        **{f"code {name}": digest for name, digest in source_files().items()},
    }


def agree(store: Store, ranks: Ranks, facts: Mapping[str, str], timeout_seconds: float = START_SECONDS) -> None:
    """Wait for every process and compare their facts. Return on all of them, or raise on all of them."""
    import torch.distributed as dist

    here = json.dumps({**facts, "processes on a node": str(ranks.local_size)}, sort_keys=True)
    digest = hashlib.sha256(here.encode()).hexdigest()
    if ranks.local_rank == 0:
        store.set(_facts_key(ranks.node), here)
    store.set(_rank_key(ranks.rank), json.dumps([ranks.node, host_name(), digest]))
    keys = [_rank_key(rank) for rank in range(ranks.world_size)]
    try:
        store.wait(keys, timedelta(seconds=timeout_seconds))
    except dist.DistStoreError:
        there = [rank for rank, key in enumerate(keys) if store.check([key])]
        hosts = {tuple(json.loads(store.get(keys[rank]))[:2]) for rank in there}
        missing = numbers(rank for rank in range(ranks.world_size) if rank not in there)
        named = ", ".join(f"node {node} ({host})" for node, host in sorted(hosts))
        raise NoRendezvous(
            f"rank {missing} of {ranks.world_size} did not join the rendezvous {rendezvous_endpoint()} within {timeout_seconds:.0f} s; "
            f"rank {numbers(there)} did, on {named}\n  look for the first error on the nodes that are missing"
        ) from None
    posts = [json.loads(store.get(key)) for key in keys]
    others = {node: host for node, host, theirs in posts if theirs != posts[0][2]}
    if others:
        text = _differences(store, posts[0][1], others)
        _leave_together(store, ranks)
        raise NodesDiffer(text) if ranks.local_rank == 0 else ToldByFirstRank(text)


def _leave_together(store: Store, ranks: Ranks) -> None:
    """Let rank 0 wait until the others have read the store, which it may host."""
    import torch.distributed as dist

    store.set(f"{_rank_key(ranks.rank)}/read", "")
    if ranks.first:
        with contextlib.suppress(dist.DistStoreError):  # a rank that is not done by then fails on its own
            store.wait([f"{_rank_key(rank)}/read" for rank in range(ranks.world_size)], timedelta(seconds=10))


def _differences(store: Store, first_host: str, others: Mapping[int, str]) -> str:
    first = json.loads(store.get(_facts_key(0)))
    lines = []
    for node, host in sorted(others.items())[:SHOWN]:
        theirs = json.loads(store.get(_facts_key(node)))
        keys = [key for key in sorted({*first, *theirs}) if first.get(key) != theirs.get(key)]
        for key in keys[:SHOWN]:
            lines.append(f"{key}: {first.get(key)} on node 0 ({first_host}), {theirs.get(key)} on node {node} ({host})")
        if not keys:  # only the first process of a node posts its facts
            lines.append(
                f"node {node} ({host}) has processes that differ from its first: a file was edited while they started"
            )
        if len(keys) > SHOWN:
            lines.append(f"and {len(keys) - SHOWN} more on node {node} ({host})")
    text = "\n".join(f"  {line}" for line in lines)
    return (
        f"the nodes of this job differ:\n{text}\n  give every node the same code and the same command; all of them stop"
    )


def numbers(ranks: Iterable[int]) -> str:
    """Format ranks as ranges: 0, 1, 2, 3, 6 as `0-3, 6`."""
    spans: list[list[int]] = []
    for rank in sorted(ranks):
        if spans and rank == spans[-1][1] + 1:
            spans[-1][1] = rank
        else:
            spans.append([rank, rank])
    return ", ".join(str(low) if low == high else f"{low}-{high}" for low, high in spans)


def _facts_key(node: int) -> str:
    return f"skytrain/node/{node}"


def _rank_key(rank: int) -> str:
    return f"skytrain/rank/{rank}"
