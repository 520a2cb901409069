"""A host of a SageMaker training job, from the files and variables that SageMaker gives its container."""

from __future__ import annotations

import contextlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..config import SkytrainError, variable
from ..jobs import address_of

REASON_LENGTH = 1024  # of which SageMaker makes the job's FailureReason


@dataclass(frozen=True)
class SageMakerHost:
    """This container among those of its job."""

    name: str  # algo-1
    hosts: tuple[str, ...]
    address: str | None  # on the network of the job
    gpus: int | None  # as SageMaker counts them, where it says so


def read_host(root: Path) -> SageMakerHost:
    """Return this host: input/config/resourceconfig.json under `root`, or the SM_* variables of AWS's containers."""
    path = root / "input/config/resourceconfig.json"
    try:
        found: dict[str, Any] = json.loads(path.read_text())
    except FileNotFoundError:
        hosts, current = variable("SM_HOSTS"), variable("SM_CURRENT_HOST")
        if hosts is None or current is None:
            raise SkytrainError(
                f"{path} does not exist, and SM_HOSTS is not set: this is no container of a SageMaker training job"
            ) from None
        found = {"hosts": json.loads(hosts), "current_host": current}
    except ValueError as error:
        raise SkytrainError(f"{path} is not what SageMaker writes: {error}") from None
    interface = found.get("network_interface_name") or variable("SM_NETWORK_INTERFACE_NAME")
    gpus = variable("SM_NUM_GPUS")
    return SageMakerHost(
        str(found["current_host"]),
        tuple(sorted(found["hosts"])),
        address_of(interface) if interface else None,
        int(gpus) if gpus else None,
    )


def write_failure(root: Path, reason: str) -> None:
    """Tell SageMaker why this container fails, in one line. A user without privileges may not be allowed to."""
    path = root / "output/failure"
    with contextlib.suppress(PermissionError):  # the reason is in the log too
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(" ".join(reason.split())[:REASON_LENGTH])
