"""The GPUs of this machine as nvidia-smi lists them, without loading torch."""

from __future__ import annotations

import shutil
import subprocess
from dataclasses import dataclass

from ..config import child_environment, visible_gpus

MIB = 2**20
SECONDS = 30
QUERY = [
    "nvidia-smi",
    "--query-gpu=index,uuid,name,memory.total,memory.used,compute_cap",
    "--format=csv,noheader,nounits",
]


@dataclass(frozen=True)
class LocalGpu:
    """A GPU of this machine."""

    name: str
    memory_bytes: float
    used_bytes: float  # by other processes
    bf16: bool


def find_gpus() -> list[LocalGpu]:
    """Return the GPUs that this process may use, none on a machine without NVIDIA's driver."""
    visible = visible_gpus()
    if visible == [] or shutil.which("nvidia-smi") is None:
        return []
    listed = subprocess.run(
        QUERY, capture_output=True, text=True, timeout=SECONDS, check=False, env=child_environment()
    )
    if listed.returncode:
        return []
    gpus = []
    for line in listed.stdout.strip().splitlines():
        index, uuid, name, total, used, capability = (field.strip() for field in line.split(","))
        if visible is None or index in visible or any(uuid.startswith(each) for each in visible if len(each) > 4):
            bf16 = int(capability.split(".")[0]) >= 8
            gpus.append(LocalGpu(name, float(total) * MIB, float(used) * MIB, bf16))
    return gpus
