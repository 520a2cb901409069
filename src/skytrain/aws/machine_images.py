"""Machine images: found by AWS's public parameters, and pinned by id so that a run keeps the one it began with."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..planning import ImageLine
from .calls import Call
from .errors import CloudError
from .session import AwsSession

IMAGE_FOLDER = "/aws/service/deeplearning/ami/x86_64"


@dataclass(frozen=True)
class MachineImage:
    """An image: its id, its line with its Python, and the device of its root volume."""

    id: str
    line: ImageLine
    root_device: str = "/dev/sda1"  # of every Ubuntu image


def image_parameter(line: ImageLine) -> str:
    """Return the public parameter that names the newest image of a line."""
    return f"{IMAGE_FOLDER}/{line.name}/latest/ami-id"


def find_image(session: AwsSession, lines: Sequence[ImageLine], region: str | None = None) -> MachineImage:
    """Return the current image of the first of these lines that the region publishes."""
    listed = Call("ssm", "GetParametersByPath", {"Path": IMAGE_FOLDER, "Recursive": True})
    published = {one["Name"]: one["Value"] for one in session.items(listed, "Parameters", region)}
    for line in lines:
        if (image := published.get(image_parameter(line))) is not None:
            return MachineImage(image, line)
    here = region or session.region
    wanted = " or ".join(line.name for line in lines)
    has = ", ".join(sorted(name.split("/")[-3] for name in published if name.endswith("/latest/ami-id")))
    raise CloudError(
        f"{here} does not publish {wanted}; it has {has or 'no Deep Learning AMI'}",
        fix=f"plan again, for a region that does: aws ssm get-parameters-by-path --recursive --path {IMAGE_FOLDER}",
    )
