"""Two hosts on this machine: network namespaces joined by a cable that can be cut."""

from __future__ import annotations

import contextlib
import itertools
import os
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

_numbers = itertools.count()


@dataclass(frozen=True)
class Host:
    namespace: str
    interface: str
    address: str

    def start(self, command: list[str], log: Path, environment: Mapping[str, str]) -> subprocess.Popen[bytes]:
        with log.open("wb") as out:
            return subprocess.Popen(
                ["ip", "netns", "exec", self.namespace, *command],
                stdout=out,
                stderr=subprocess.STDOUT,
                env={**os.environ, **environment},
                start_new_session=True,
            )

    def cut_off(self) -> None:
        """As when the cable is pulled: nothing arrives any more, and no connection is told that it is closed."""
        _ip("-n", self.namespace, "link", "set", self.interface, "down")


@contextlib.contextmanager
def two_hosts() -> Iterator[tuple[Host, Host]]:
    """Skips the test where this process may not make namespaces."""
    name = f"sky{os.getpid()}-{next(_numbers)}"
    first, second = Host(f"{name}a", "vetha", "10.77.0.1"), Host(f"{name}b", "vethb", "10.77.0.2")
    with contextlib.ExitStack() as undo:
        for host in (first, second):
            try:
                _ip("netns", "add", host.namespace)
            except (FileNotFoundError, subprocess.CalledProcessError) as error:
                reason = getattr(error, "stderr", None) or error
                pytest.skip(f"network namespaces are not to be had here: {reason}")
            undo.callback(_ip, "netns", "del", host.namespace)
        ends = (first.interface, "netns", first.namespace), (second.interface, "netns", second.namespace)
        _ip("link", "add", *ends[0], "type", "veth", "peer", "name", *ends[1])
        for host in (first, second):
            _ip("-n", host.namespace, "addr", "add", f"{host.address}/24", "dev", host.interface)
            _ip("-n", host.namespace, "link", "set", host.interface, "up")
            _ip("-n", host.namespace, "link", "set", "lo", "up")
        yield first, second


def torchrun(host: Host, first: Host, processes: int, *words: str) -> list[str]:
    """One of two agents, as a user starts it on each host."""
    import sys

    return [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--nnodes=2",
        f"--nproc-per-node={processes}",
        "--rdzv-backend=c10d",
        "--rdzv-id=job",
        f"--rdzv-endpoint={first.address}:29500",
        f"--rdzv-conf=is_host={str(host == first).lower()}",
        f"--local-addr={host.address}",
        *words,
    ]


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True, text=True)
