"""Which of AWS's machine images serves which machines, and with which Python.

Each row of `IMAGE_LINES` is a line of Deep Learning AMIs, with what its release notes say (docs.aws.amazon.com/dlami,
"Release notes for Deep Learning AMIs"). An image and its interpreter are chosen together: packages are collected for that
Python, and a machine checks at boot that it has it. A line that is not listed here is not used, however new it is.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ..config import SkytrainError
from .plan_file import PlannedOffer

# "supported_ec2_instances" in the release notes of the images with PyTorch.
SERVED_WITH_PYTORCH = ("g4dn", "g5", "g6", "gr6", "g6e", "p4d", "p4de", "p5", "p5e", "p5en", "p6-b200")


@dataclass(frozen=True)
class ImageLine:
    """One line of AWS's images; AWS names its newest image by a public parameter."""

    name: str
    families: tuple[str, ...]  # that it serves; empty: all x86 machines, with GPUs or without
    python: str
    python_version: str
    torch_version: str | None = None  # None: the packages of a launch bring it

    @property
    def system(self) -> str:
        """Return what the image is, in a few words."""
        return f"PyTorch {self.torch_version.removesuffix('.0')}" if self.torch_version else "NVIDIA driver, no PyTorch"


def _with_pytorch(version: str) -> ImageLine:
    return ImageLine(
        name=f"oss-nvidia-driver-gpu-pytorch-{version}-ubuntu-24.04",
        families=SERVED_WITH_PYTORCH,
        python="/opt/pytorch/bin/python",
        python_version="3.12",
        torch_version=f"{version}.0",
    )


# The best first, and none with a PyTorch that Skytrain does not run on. The last has the NVIDIA driver and Amazon's agents: for
# machines without GPUs, and for new GPUs.
IMAGE_LINES = (
    *(_with_pytorch(version) for version in ("2.12", "2.11")),
    ImageLine("base-oss-nvidia-driver-gpu-ubuntu-24.04", (), "/usr/bin/python3", "3.12"),
)
BASE_LINE = IMAGE_LINES[-1]


def lines_for(instance_types: Iterable[str], *, gpu: bool) -> list[ImageLine]:
    """Return the lines that serve all of these machines, the best first; the base line serves every one."""
    families = {each.partition(".")[0] for each in instance_types}
    return [line for line in IMAGE_LINES if not line.families or (gpu and families <= set(line.families))]


def planned_image(offers: Sequence[PlannedOffer]) -> str:
    """Return the name of the line that a plan with these offers pins: they share one image, and its packages."""
    gpu = any(offer.gpus_per_node for offer in offers)
    return lines_for((offer.instance_type for offer in offers), gpu=gpu)[0].name


def image_line(name: str) -> ImageLine:
    """Return the line that a plan names. Raises SkytrainError if this version of Skytrain does not know it."""
    for line in IMAGE_LINES:
        if line.name == name:
            return line
    raise SkytrainError(f"the plan's image is {name}, which this version does not know\n  plan again, or add --replan")


def images_table() -> str:
    """Return the lines as a table in Markdown, for the docs."""
    rows = [
        f"| `{line.name}` | {', '.join(line.families) or 'every other x86 machine'} | {line.system} | "
        f"{line.python_version}, `{line.python}` |"
        for line in IMAGE_LINES
    ]
    return "\n".join(["| image | machines | has | Python |", "| --- | --- | --- | --- |", *rows])
