"""Checks whether a host is fit to train: its GPUs, EFA devices, local disks, and an all-reduce among its GPUs.

Each check applies where the machine has the device. It runs before a host registers and after a job failed on it.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from ..config import child_environment
from .network import INFINIBAND, count_efa_devices
from .supervisor import count_gpus

QUERY_SECONDS = 30.0  # limit on nvidia-smi, which hangs when a GPU has fallen off the bus
ALL_REDUCE_SECONDS = 30.0  # how long all-reduces are repeated
START_SECONDS = 90.0  # additional time for torch to start and the GPUs to join
NVME = "/dev/nvme*n1"
NCCL_LOG = {"NCCL_DEBUG": "INFO", "NCCL_DEBUG_SUBSYS": "INIT,NET"}
ON_EFA = "selected provider is efa"  # aws-ofi-nccl's line in lower case; capitals differ between its versions


@dataclass(frozen=True)
class HostNeeds:
    """The needs of a job on one host."""

    processes: int  # of the job, on this host
    cache_folder: Path | None = None
    efa_devices: int = 0  # that the machine was rented with; 0 if there are none or it is not known


def find_problems(needs: HostNeeds, all_reduce_seconds: float = ALL_REDUCE_SECONDS) -> list[str]:
    """Return one line for each problem; an empty list means that the host is fit."""
    gpus = count_gpus()
    efa = needs.efa_devices
    problems = [*_gpu_problems(gpus, needs.processes), *_efa_problems(efa), *_disk_problems(needs.cache_folder)]
    if not problems and gpus and (needs.processes > 1 or efa):
        problems += all_reduce_problems(needs.processes, "nccl", all_reduce_seconds, efa=efa > 0)
    return problems


def _gpu_problems(gpus: int, processes: int) -> Iterator[str]:
    if not gpus:
        return
    if gpus < processes:
        yield f"the machine has {gpus} GPUs, and the job needs {processes}"
    query = ["nvidia-smi", "--query-gpu=index,ecc.errors.uncorrected.volatile.total", "--format=csv,noheader"]
    try:
        done = subprocess.run(query, capture_output=True, text=True, timeout=QUERY_SECONDS, check=False)
    except subprocess.TimeoutExpired:
        yield f"nvidia-smi does not answer within {QUERY_SECONDS:.0f} s"
        return
    except FileNotFoundError:
        return  # a container without the tool; torch reports what is wrong
    lines = done.stdout.strip().splitlines()
    if done.returncode or len(lines) < gpus:
        yield f"nvidia-smi reports {len(lines)} of {gpus} GPUs (exit code {done.returncode}): {done.stderr.strip()[:200]}"
    for line in lines:
        index, _, errors = (word.strip() for word in line.partition(","))
        if errors.isdigit() and int(errors):
            yield f"GPU {index} has {errors} uncorrected memory errors"


def _efa_problems(wanted: int = 0, folder: Path = INFINIBAND) -> Iterator[str]:
    devices = count_efa_devices(folder)
    if devices < wanted:
        yield f"only {devices} of {wanted} EFA devices are present"
    if not devices:
        return
    for state in sorted(folder.glob("*/ports/*/state")):
        if "ACTIVE" not in state.read_text():
            yield f"EFA device {state.parents[2].name} is {state.read_text().strip()}"


def _disk_problems(folder: Path | None) -> Iterator[str]:
    """Write to the data cache, which is on the local NVMe disk if the machine has one."""
    if folder is None or not list(Path("/").glob(NVME.lstrip("/"))):
        return
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=folder, prefix=".skytrain-") as file:
            file.write(bytes(1 << 20))
            file.flush()
    except OSError as error:
        yield f"the cache folder {folder} cannot be written: {error.strerror}"


def all_reduce_problems(processes: int, backend: str, seconds: float, *, efa: bool = False) -> list[str]:
    """Check the sums of all-reduces among the processes of this host and, with `efa`, that NCCL uses EFA.

    NCCL chooses its network when a communicator is made, even for a single host, and logs its choice.
    """
    command = [
        *(sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(processes)),
        *("-m", "skytrain.jobs.all_reduce", backend, str(seconds)),
    ]
    limit = seconds + START_SECONDS
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=limit, check=False,
            env=child_environment(NCCL_LOG if efa else None),
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return [f"an all-reduce among {processes} processes did not end within {limit:.0f} s"]
    if done.returncode:
        last = next((line for line in reversed(done.stderr.splitlines()) if "Error" in line), "no reason given")
        return [f"an all-reduce among {processes} processes failed: {last.strip()[:200]}"]
    if efa and not uses_efa(done.stdout + done.stderr):
        return ["NCCL does not use EFA: its log does not name the provider efa, so hosts would communicate by TCP"]
    return []


def uses_efa(log: str) -> bool:
    """Return whether NCCL's log, written with NCCL_LOG, says that its network is EFA."""
    return ON_EFA in log.lower()
