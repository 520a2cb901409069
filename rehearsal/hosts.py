"""Hosts on this machine: namespaces on a bridge, each with a metadata service; power and cables can be cut."""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.support.s3 import die_with_parent

from .init import POWER_BUTTON
from .metadata import InstanceFacts, MetadataService

INIT = Path(__file__).with_name("init.py")
# What runs here and on the machines: this checkout and its Python, wherever they are.
KEPT = sorted({os.path.realpath(path) for path in (INIT.parents[1], sys.prefix, sys.base_prefix)})
CLONE_NEWNET = 0x40000000  # of unshare(2)
NEEDED = {"ip": "iproute2", "unshare": "util-linux", "mount": "util-linux", "aws": "the AWS command line (awscli)"}


def missing() -> str | None:
    """Return what this machine lacks for a rehearsal, in one line; None if it has everything."""
    if sys.platform != "linux":
        return "the rehearsal needs Linux: its hosts are namespaces"
    if os.geteuid() != 0:
        return "the rehearsal needs root, for network and mount namespaces: sudo make rehearse"
    lacking = [f"{program} ({package})" for program, package in NEEDED.items() if shutil.which(program) is None]
    if lacking:
        return f"the rehearsal needs {', '.join(lacking)} on the PATH"
    probe = subprocess.run(["unshare", "--net", "--mount", "--pid", "--fork", "--time", "true"], capture_output=True)
    if probe.returncode:
        return f"this machine allows no namespaces: {probe.stderr.decode().strip()} (a container needs --privileged)"
    return None


@dataclass(frozen=True)
class HostNetwork:
    """The bridge that joins the hosts to the services of the rehearsal."""

    bridge: str
    address: str  # of the services
    prefix: int = 16

    def cut_between_hosts(self, ports: list[str], cut: bool) -> None:
        """Let the hosts of these ports no longer reach each other; they still reach the services."""
        for port in ports:
            ip("link", "set", port, "type", "bridge_slave", "isolated", "on" if cut else "off")


def enter_own_network() -> None:
    """Move this process to a network of its own: rehearsals at the same time have the same addresses."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(CLONE_NEWNET):
        raise OSError(ctypes.get_errno(), "this process gets no network of its own")
    ip("link", "set", "lo", "up")


@contextlib.contextmanager
def host_network(address: str) -> Iterator[HostNetwork]:
    """Make the bridge, for hosts with addresses of the same /16; it is removed at the end."""
    remove_leftovers()
    network = HostNetwork(f"sky{os.getpid()}", address)
    ip("link", "add", network.bridge, "type", "bridge")
    try:
        ip("addr", "add", f"{address}/{network.prefix}", "dev", network.bridge)
        ip("link", "set", network.bridge, "up")
        yield network
    finally:
        ip("link", "del", network.bridge)


def remove_leftovers() -> None:
    """Remove the namespaces and bridges of rehearsals that were killed."""
    folder = Path("/run/netns")
    for path in sorted(folder.glob("sky*-*")) if folder.exists() else []:
        if (found := re.match(r"sky(\d+)-", path.name)) and not Path("/proc", found[1]).exists():
            ip("netns", "del", path.name)
    for path in Path("/sys/class/net").glob("sky*"):
        if (found := re.fullmatch(r"sky(\d+)", path.name)) and not Path("/proc", found[1]).exists():
            with contextlib.suppress(subprocess.CalledProcessError):  # one of another network goes with it
                ip("link", "del", path.name)


def namespaces() -> list[str]:
    """Return the namespaces of this rehearsal that exist."""
    return [path.name for path in Path("/run/netns").glob(f"sky{os.getpid()}-*")]


@dataclass(frozen=True)
class MachineParts:
    """What all machines have in common."""

    folder: Path  # of their logs
    environment: Mapping[str, str]  # leads AWS's clients to the rehearsal
    credentials: tuple[str, str]
    metadata_answers: bool = True


class Host:
    """One machine: powered on when made."""

    def __init__(self, facts: InstanceFacts, user_data: str, network: HostNetwork, parts: MachineParts) -> None:
        self.facts = facts
        self.network = network
        self.namespace = f"{network.bridge}-{facts.id[-6:]}"
        self.port = f"v{facts.id[-12:]}"
        self.folder = parts.folder / facts.id
        self.folder.mkdir(parents=True)
        self.metadata = MetadataService(facts, parts.credentials)
        self._connect(parts.metadata_answers)
        self.process = self._power_on(user_data, parts)

    def _connect(self, metadata_answers: bool) -> None:
        name = self.namespace
        network = self.network
        ip("netns", "add", name)
        ip("link", "add", self.port, "type", "veth", "peer", "name", "eth0", "netns", name)
        ip("link", "set", self.port, "master", network.bridge, "up")
        ip("-n", name, "link", "set", "lo", "up")
        ip("-n", name, "addr", "add", "169.254.169.254/32", "dev", "lo")
        ip("-n", name, "addr", "add", f"{self.facts.address}/{network.prefix}", "dev", "eth0")
        ip("-n", name, "link", "set", "eth0", "up")
        ip("-n", name, "route", "add", "default", "via", network.address)
        self.metadata.start(name, answers=metadata_answers)

    def _power_on(self, user_data: str, parts: MachineParts) -> subprocess.Popen[bytes]:
        events = os.open(self.folder / "events.jsonl", os.O_CREAT | os.O_WRONLY | os.O_APPEND)
        spec = {
            "instance": self.facts.id,
            "host_name": f"ip-{self.facts.address.replace('.', '-')}",
            "subnets": ["10.0.0", "10.0.1"],
            "boot_id": str(uuid.uuid4()),
            "efa_devices": self.facts.efa_devices,
            "user_data": user_data,
            "environment": dict(parts.environment),
            "events": events,
            "kept": KEPT,
            "aws": f'#!/bin/sh\nPATH="{os.environ["PATH"]}" exec {shutil.which("aws")} "$@"\n',
        }
        (self.folder / "spec.json").write_text(json.dumps(spec))
        uptime = int(float(Path("/proc/uptime").read_text().split()[0]))
        namespaces = ["--pid", "--fork", "--kill-child", "--mount", "--uts", "--ipc", "--time", f"--boottime=-{uptime}"]
        command = ["ip", "netns", "exec", self.namespace, "unshare", *namespaces]
        process = subprocess.Popen(
            [*command, sys.executable, str(INIT), str(self.folder / "spec.json")],
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, pass_fds=[events],
            start_new_session=True, preexec_fn=die_with_parent,
        )  # fmt: skip
        os.close(events)
        threading.Thread(target=self._keep_console, args=(process.stdout,), daemon=True).start()
        return process

    def _keep_console(self, lines: Iterable[bytes]) -> None:
        """Keep what the machine prints, each line with its time."""
        with (self.folder / "console.log").open("w", buffering=1) as file:
            for line in lines:
                file.write(f"{time.time():.2f} {line.decode(errors='replace')}")

    # What the machine has told.

    @property
    def console(self) -> str:
        file = self.folder / "console.log"
        return file.read_text() if file.exists() else ""

    def printed(self, pattern: str, since: float = 0.0) -> float | None:
        """Return when the machine first printed a line with this pattern; None if it has not."""
        for line in self.console.splitlines():
            at, _, text = line.partition(" ")
            if re.search(pattern, text) and float(at) >= since:
                return float(at)
        return None

    @property
    def events(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in (self.folder / "events.jsonl").read_text().splitlines()]

    def processes(self) -> list[int]:
        """Return the machine's processes, without its first one."""
        first = self._first()
        return [] if first is None else descendants(first)

    def _first(self) -> int | None:
        found = children(self.process.pid)
        return found[0] if found else None

    # What happens to it.

    @property
    def is_on(self) -> bool:
        return self.process.poll() is None

    def press_power_button(self) -> None:
        first = self._first()
        if first is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(first, POWER_BUTTON)

    def cut_power(self) -> None:
        """Nothing is said to anyone: the cable goes first, so that no connection is closed in order."""
        self.cut_off(True)
        first = self._first()
        if first is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(first, signal.SIGKILL)
        self.process.wait()

    def cut_off(self, cut: bool) -> None:
        """Pull the network cable, or plug it in again."""
        with contextlib.suppress(subprocess.CalledProcessError):
            ip("link", "set", self.port, "down" if cut else "up")

    def freeze(self) -> None:
        """SIGSTOP to every process but the first: the agent and its job are there, and do nothing."""
        for pid in self.processes():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGSTOP)

    def remove(self) -> None:
        """Give back the namespace of a machine that is off."""
        self.process.wait()
        self.metadata.stop()
        with contextlib.suppress(subprocess.CalledProcessError):
            ip("link", "del", self.port)
        ip("netns", "del", self.namespace)


def children(pid: int) -> list[int]:
    found = []
    for task in Path(f"/proc/{pid}/task").glob("*/children"):  # each thread has children of its own
        with contextlib.suppress(OSError):
            found += [int(word) for word in task.read_text().split()]
    return found


def descendants(pid: int) -> list[int]:
    found = children(pid)
    return [*found, *(each for child in found for each in descendants(child))]


def ip(*words: str) -> None:
    deadline = time.monotonic() + 5
    while True:
        done = subprocess.run(["ip", *words], capture_output=True, text=True)
        if done.returncode == 0:
            return
        if "busy" not in done.stderr or time.monotonic() > deadline:
            raise subprocess.CalledProcessError(done.returncode, ["ip", *words], done.stdout, done.stderr)
        time.sleep(0.1)
