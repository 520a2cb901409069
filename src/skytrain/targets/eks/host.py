"""A pod of a Kubernetes job, from the variables that the job and the downward API set."""

from __future__ import annotations

from dataclasses import dataclass

from ...config import SkytrainError, variable

INDEX = "JOB_COMPLETION_INDEX"
ADDRESS = "POD_IP"


@dataclass(frozen=True)
class PodHost:
    """This pod among those of its job. Its name follows the index, so that a replacement is known as the same host.

    A host that starts again under its name ends the generation of its predecessor at once; another name would have
    the others wait until the heartbeat is missed.
    """

    name: str
    address: str


def read_pod(nodes: int) -> PodHost:
    """Return this pod; raises SkytrainError outside an Indexed Job of that many pods."""
    index = variable(INDEX)
    address = variable(ADDRESS)
    if not index or not address:
        missing = INDEX if not index else ADDRESS
        raise SkytrainError(
            f"{missing} is not set: this is no pod of a job that `skytrain launch cloud=eks` made\n"
            "  elsewhere, leave out cloud=eks: skytrain node ... --name NAME"
        )
    if not index.isdigit() or int(index) >= nodes:
        raise SkytrainError(f"{INDEX}={index}: the run is planned for {nodes} pods, 0 to {nodes - 1}")
    return PodHost(f"pod-{index}", address)
