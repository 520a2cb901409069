"""A real Slurm cluster of two nodes on this machine: munged, slurmctld and two slurmd, on the loopback interface."""

from __future__ import annotations

import contextlib
import os
import platform
import random
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

PACKAGES = ("slurm-wlm", "munge")  # of Debian
NODES = ("n1", "n2")

CONF = """\
ClusterName=lab
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={port}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge/munge.sock
CryptoType=crypto/munge
CredType=cred/munge
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool.%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerType=sched/backfill
SchedulerParameters=sched_interval=1,bf_interval=1,batch_sched_delay=0
SlurmdParameters=config_overrides
ReturnToService=2
JobRequeue=1
SlurmdTimeout=30
SlurmctldTimeout=30
KillWait=30
MessageTimeout=90
AccountingStorageType=accounting_storage/none
JobAcctGatherType=jobacct_gather/none
{nodes}
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
PartitionName=spot Nodes={names} Default=YES MaxTime=2:00:00 State=UP
PartitionName=low Nodes={names} MaxTime=2:00:00 PreemptMode=CANCEL PriorityTier=1 State=UP
PartitionName=high Nodes={names} MaxTime=2:00:00 PriorityTier=9 State=UP
"""


class SlurmCluster:
    """The running daemons, and the environment in which Slurm's commands find them."""

    def __init__(self, folder: Path, port: int) -> None:
        self.folder = folder
        self.conf = folder / "slurm.conf"
        self._port = port

    def start(self) -> None:
        for name in ("state", "munge", *(f"spool.{node}" for node in NODES)):
            (self.folder / name).mkdir(parents=True)
        for path in (
            self.folder,
            *self.folder.parents[:3],
        ):  # munged runs as another user, and pytest's folders are closed
            if path.owner() == "root" and path != Path("/tmp"):
                path.chmod(0o755)
        nodes = "\n".join(
            f"NodeName={name} NodeHostname={platform.node()} NodeAddr=127.0.0.1 Port={self._port + number} "
            f"CPUs=2 RealMemory=4000 State=UNKNOWN"
            for number, name in enumerate(NODES, 1)
        )
        self.conf.write_text(
            CONF.format(host=platform.node(), port=self._port, folder=self.folder, nodes=nodes, names=",".join(NODES))
        )
        self._start_munge()
        self._command("slurmctld", "-f", str(self.conf))
        for node in NODES:
            self.start_node(node)
        self.wait_idle()

    def _start_munge(self) -> None:
        folder = self.folder / "munge"
        key = folder / "munge.key"
        key.write_bytes(os.urandom(1024))
        for path in (folder, key):
            shutil.chown(path, "munge", "munge")
        key.chmod(0o400)
        files = {"socket": "munge.sock", "pid-file": "munged.pid", "log-file": "munged.log", "seed-file": "seed"}
        options = [f"--{name}={folder / file}" for name, file in files.items()]
        self._command("runuser", "-u", "munge", "--", "munged", f"--key-file={key}", *options)

    def start_node(self, node: str) -> None:
        self._command("slurmd", "-N", node, "-f", str(self.conf))

    def kill_node(self, node: str) -> None:
        """Kill a node's daemon and all that it runs, as the loss of the machine does."""
        os.kill(int((self.folder / f"slurmd.{node}.pid").read_text()), signal.SIGKILL)
        mark = f"SLURMD_NODENAME={node}".encode()
        for process in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                if mark in (process / "environ").read_bytes().split(b"\0"):
                    parent = int((process / "stat").read_text().rpartition(")")[2].split()[1])
                    if Path(f"/proc/{parent}/comm").read_text().strip() == "slurmstepd":
                        os.kill(parent, signal.SIGKILL)
                    os.kill(int(process.name), signal.SIGKILL)

    def environment(self) -> dict[str, str]:
        return {"SLURM_CONF": str(self.conf)}

    def ask(self, *command: str) -> str:
        done = subprocess.run(command, env={**os.environ, **self.environment()}, capture_output=True, text=True)
        assert done.returncode == 0, f"{command}: {done.stderr}"
        return done.stdout

    def wait_idle(self, seconds: float = 60.0) -> None:
        deadline = time.monotonic() + seconds
        while self.ask("sinfo", "-h", "-t", "idle", "-o", "%D").strip() != str(len(NODES)):
            assert time.monotonic() < deadline, (self.folder / "slurmctld.log").read_text()[-2000:]
            time.sleep(0.25)

    def _command(self, *command: str) -> None:
        subprocess.run(command, check=True, env={**os.environ, **self.environment()}, capture_output=True)

    def stop(self) -> None:
        for file in (*(f"slurmd.{node}.pid" for node in NODES), "slurmctld.pid", "munge/munged.pid"):
            with contextlib.suppress(OSError, ValueError, ProcessLookupError):
                os.kill(int((self.folder / file).read_text()), signal.SIGKILL)


def _free_ports(count: int) -> int:
    """The first of so many consecutive ports that nobody listens on."""
    while True:
        first = random.randrange(16000, 30000)
        with contextlib.ExitStack() as stack, contextlib.suppress(OSError):
            for port in range(first, first + count):
                stack.enter_context(socket.socket()).bind(("127.0.0.1", port))
            return first


@contextlib.contextmanager
def slurm_cluster(folder: Path) -> Iterator[SlurmCluster]:
    """Start a cluster; it is gone when the block ends. Installs Debian's packages if they are missing."""
    if shutil.which("slurmctld") is None or shutil.which("munged") is None:
        install = ["apt-get", "install", "-y", "--no-install-recommends", *PACKAGES]
        subprocess.run(
            install, check=True, capture_output=True, env={**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
        )
    cluster = SlurmCluster(folder, _free_ports(1 + len(NODES)))
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.stop()
