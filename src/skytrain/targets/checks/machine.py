"""This machine: Python, the packages, room on the disk."""

from __future__ import annotations

import shutil
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from ... import __version__
from ...config import child_environment, format_bytes, skytrain_cache_folder, visible_gpus
from ...jobs import NCCL_LOG, count_efa_devices, uses_efa
from .check import Failed, NotChecked, Preflight

OLDEST_PYTHON = (3, 11)
NEEDED_DISK_BYTES = 5e9  # a checkpoint of GPT-2 124M and its data fit
INSTALL = "pip install 'skytrain[train]'"


def python(_: Preflight) -> str:
    running = ".".join(map(str, sys.version_info[:3]))
    if sys.version_info < OLDEST_PYTHON:
        raise Failed(f"Python {running} is older than 3.11", "install Python 3.11 or newer")
    return f"Python {running}, Skytrain {__version__}"


def packages(_: Preflight) -> str:
    """Read the installed versions without importing: torch takes seconds."""
    installed = []
    missing = []
    for name in ("torch", "lightning", "boto3"):
        try:
            installed.append(f"{name} {version(name)}")
        except PackageNotFoundError:
            missing.append(name)
    if missing:
        extra = "aws" if missing == ["boto3"] else "train,aws"
        raise Failed(f"{', '.join(missing)} not installed", f"pip install 'skytrain[{extra}]'")
    return ", ".join(installed)


def disk(preflight: Preflight) -> str:
    folder = Path.cwd() if "://" in preflight.config.store.root else Path(preflight.config.store.root).absolute()
    rooms = {str(place): _free(place) for place in (folder, skytrain_cache_folder())}
    place, free = min(rooms.items(), key=lambda room: room[1])
    if free < NEEDED_DISK_BYTES:
        raise Failed(
            f"only {format_bytes(free)} free at {place}",
            f"free at least {format_bytes(NEEDED_DISK_BYTES)}, or set store.root and SKYTRAIN_CACHE to another disk",
        )
    return f"{format_bytes(free)} free at {place}"


def _free(place: Path) -> float:
    while not place.exists():
        place = place.parent
    return float(shutil.disk_usage(place).free)


NVIDIA_DEVICE = Path("/dev/nvidia0")
BLOCK_DEVICES = Path("/sys/block")
MOUNTS = Path("/proc/mounts")
INSTANCE_STORE = "Amazon EC2 NVMe Instance Storage"
SECONDS = 20
NCCL_SECONDS = 120
OLDEST_DRIVER = 525  # the oldest that CUDA 12 runs on
DRIVER_LINK = "https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/install-nvidia-driver.html"
EFA_LINK = "https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/efa-start-nccl.html"
# One rank is enough: NCCL chooses its network when the communicator is made.
ALL_REDUCE = """
import tempfile, torch, torch.distributed as dist
dist.init_process_group("nccl", init_method="file://" + tempfile.mktemp(), rank=0, world_size=1)
dist.all_reduce(torch.ones(1, device="cuda"))
torch.cuda.synchronize()
"""
TORCH = """
import torch
print(torch.__version__, torch.version.cuda, torch.cuda.device_count(), torch.cuda.is_bf16_supported())
float(torch.ones(8, 8, device="cuda").matmul(torch.ones(8, 8, device="cuda")).sum())
"""


def driver(_: Preflight) -> str:
    if not NVIDIA_DEVICE.exists() or visible_gpus() == []:
        raise NotChecked("this machine has no NVIDIA GPU")
    fix = "use an AWS Deep Learning AMI, or install NVIDIA's driver"
    if shutil.which("nvidia-smi") is None:
        raise Failed("nvidia-smi is not installed", fix, link=DRIVER_LINK)
    said = _run(["nvidia-smi", "--query-gpu=name,driver_version,memory.total", "--format=csv,noheader"])
    if said.returncode:
        raise Failed(f"nvidia-smi: {_last_line(said)}", fix, link=DRIVER_LINK)
    cards = [line.split(", ") for line in said.stdout.strip().splitlines()]
    name, version, memory = cards[0]
    if int(version.split(".")[0]) < OLDEST_DRIVER:
        raise Failed(f"driver {version} is older than {OLDEST_DRIVER}, which CUDA 12 needs", fix, link=DRIVER_LINK)
    return f"{len(cards)} x {name} ({memory}), driver {version}"


def torch_on_gpu(_: Preflight) -> str:
    """Compute on the GPU in a process of its own: a broken driver must not take `doctor` with it."""
    done = _run([sys.executable, "-c", TORCH], NCCL_SECONDS)
    if done.returncode:
        raise Failed(f"torch cannot use the GPU: {_last_line(done)}", "pip install 'skytrain[train]' with a CUDA torch")
    version, cuda, count, bf16 = done.stdout.split()
    return f"torch {version}, CUDA {cuda}, {count} GPUs, {'bf16' if bf16 == 'True' else 'no bf16'}"


def nvme(_: Preflight) -> str:
    disks = [one.name for one in BLOCK_DEVICES.glob("nvme*") if _model(one) == INSTANCE_STORE]
    if not disks:
        raise NotChecked("this machine has no local NVMe disks")
    mounted = {line.split()[0].rpartition("/")[2]: line.split()[1] for line in MOUNTS.read_text().splitlines()}
    idle = [disk for disk in disks if not _places(disk, mounted)]
    if idle:
        raise Failed(
            f"{', '.join(idle)} not mounted: data would be cached on the slower root disk",
            "Deep Learning AMIs mount them at /opt/dlami/nvme; elsewhere: mkfs.xfs, mount, and set SKYTRAIN_CACHE",
        )
    places = sorted({place for disk in disks for place in _places(disk, mounted)})
    return f"{len(disks)} local NVMe disks at {', '.join(places)}"


def efa_present(_: Preflight) -> str:
    devices = count_efa_devices()
    if devices == 0:
        raise NotChecked("this machine has no EFA device")
    if shutil.which("fi_info") is None:
        raise Failed(
            f"{devices} EFA devices, but libfabric is not installed (no fi_info)",
            "install aws-efa-installer, or use a Deep Learning AMI; then add /opt/amazon/efa/bin to PATH",
            link=EFA_LINK,
        )
    said = _run(["fi_info", "-p", "efa"])
    if said.returncode or "provider: efa" not in said.stdout:
        raise Failed(
            f"libfabric does not find EFA: {_last_line(said)}",
            "sudo modprobe efa; reinstall aws-efa-installer",
            link=EFA_LINK,
        )
    return f"{devices} devices; libfabric finds the provider efa"


def efa_used(_: Preflight) -> str:
    """Let NCCL set up its network and read in its own log which provider it chose."""
    done = _run([sys.executable, "-c", ALL_REDUCE], NCCL_SECONDS, NCCL_LOG)
    if done.returncode:
        raise Failed(f"an NCCL all-reduce failed: {_last_line(done)}", "see its log: NCCL_DEBUG=INFO", link=EFA_LINK)
    line = next((one for one in (done.stdout + done.stderr).splitlines() if uses_efa(one)), None)
    if line is None:
        raise Failed(
            "NCCL does not use EFA: its log names no provider efa, so nodes would talk by TCP",
            "install aws-ofi-nccl (Deep Learning AMIs have it); LD_LIBRARY_PATH must hold libnccl-net.so",
            link=EFA_LINK,
        )
    return line[line.find("NET/OFI") :].strip()


def _model(disk: Path) -> str:
    file = disk / "device" / "model"
    return file.read_text().strip() if file.exists() else ""


def _places(disk: str, mounted: dict[str, str]) -> list[str]:
    """Return where the disk, a partition of it or a RAID or volume on it is mounted."""
    names = [disk, *(one.name for one in (BLOCK_DEVICES / disk).glob(f"{disk}*"))]
    held = [one.name for one in (BLOCK_DEVICES / disk / "holders").glob("*")]
    names += held + [above.name for one in held for above in (BLOCK_DEVICES / one / "holders").glob("*")]
    by_volume = [name for one in names if (name := _volume_name(one))]
    return [mounted[name] for name in [*names, *by_volume] if name in mounted]


def _volume_name(device: str) -> str:
    """Return the name under /dev/mapper of a logical volume; Deep Learning AMIs join the disks into one."""
    file = BLOCK_DEVICES / device / "dm" / "name"
    return file.read_text().strip() if file.exists() else ""


def _run(
    command: list[str], seconds: float = SECONDS, more: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(
            command, capture_output=True, text=True, timeout=seconds, env=child_environment(more), check=False
        )
    except subprocess.TimeoutExpired:
        return subprocess.CompletedProcess(command, 124, "", f"no answer within {seconds:.0f} s")


def _last_line(done: subprocess.CompletedProcess[str]) -> str:
    said = (done.stderr.strip() or done.stdout.strip()).splitlines()
    return said[-1] if said else f"exit code {done.returncode}"
