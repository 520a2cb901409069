"""A host of a SageMaker training job, from the files and variables that SageMaker gives its container."""

from __future__ import annotations

import contextlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...config import SkytrainError, variable
from ...jobs import address_of

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
    source = str(path)
    hosts = variable("SM_HOSTS")
    current = variable("SM_CURRENT_HOST")
    try:
        found: dict[str, Any]
        if path.exists():
            found = json.loads(path.read_text())
        elif hosts is not None and current is not None:
            source = "SM_HOSTS"
            found = {"hosts": json.loads(hosts), "current_host": current}
        else:
            raise SkytrainError(
                f"{path} does not exist, and SM_HOSTS is not set: this is no container of a SageMaker training job"
            )
        name = str(found["current_host"])
        names = tuple(sorted(map(str, found["hosts"])))
        interface = found.get("network_interface_name") or variable("SM_NETWORK_INTERFACE_NAME")
        if name not in names:
            raise SkytrainError(f"{source}: this host, {name}, is not among the hosts {', '.join(names)}")
    except SkytrainError:  # a ValueError too
        raise
    except KeyError as error:
        raise SkytrainError(f"{source} is not what SageMaker writes: {error} is missing") from None
    except (AttributeError, TypeError, ValueError) as error:
        raise SkytrainError(f"{source} is not what SageMaker writes: {error}") from None
    gpus = variable("SM_NUM_GPUS") or ""
    return SageMakerHost(
        name, names, address_of(interface) if interface else None, int(gpus) if gpus.isdigit() else None
    )


def write_failure(root: Path, reason: str) -> None:
    """Tell SageMaker why this container fails, in one line. A user without privileges may not be allowed to."""
    path = root / "output/failure"
    with contextlib.suppress(PermissionError):  # the reason is in the log too
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(" ".join(reason.split())[:REASON_LENGTH])
