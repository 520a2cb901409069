"""Machine images: found by AWS's public parameters, and pinned by id so that a run keeps the one it began with."""

from __future__ import annotations

import re
from dataclasses import dataclass

from .calls import Call
from .errors import CloudError
from .session import AwsSession

GPU_FOLDER = "/aws/service/deeplearning/ami/x86_64"
# AWS has no name for the newest PyTorch: versions are compared.
GPU_NAME = re.compile(GPU_FOLDER + r"/oss-nvidia-driver-gpu-pytorch-(\d+)\.(\d+)-ubuntu-24\.04/latest/ami-id")
# The same system for machines without GPUs, with Amazon's agents: owned by Amazon, as the operator role requires.
CPU_PARAMETER = GPU_FOLDER + "/base-oss-nvidia-driver-gpu-ubuntu-24.04/latest/ami-id"
PLAIN_PYTHON = "/usr/bin/python3"  # of Ubuntu 24.04: 3.12, as in the images with PyTorch


@dataclass(frozen=True)
class MachineImage:
    """An image: its id, the parameter that named it, and the device of its root volume."""

    id: str
    parameter: str
    root_device: str = "/dev/sda1"  # of every Ubuntu image

    @property
    def torch_version(self) -> str | None:
        """Return the torch that the image has, to the minor version; None for a plain image."""
        match = GPU_NAME.fullmatch(self.parameter)
        return f"{match[1]}.{match[2]}.0" if match else None


def find_image(session: AwsSession, gpu: bool, region: str | None = None) -> MachineImage:
    """Return the current image: a Deep Learning AMI, with the newest PyTorch for GPUs, without it otherwise."""
    if not gpu:
        parameter = session.perform(Call("ssm", "GetParameter", {"Name": CPU_PARAMETER}), region)["Parameter"]
        return MachineImage(parameter["Value"], CPU_PARAMETER)
    listed = Call("ssm", "GetParametersByPath", {"Path": GPU_FOLDER, "Recursive": True})
    images = {
        (int(match[1]), int(match[2])): MachineImage(one["Value"], one["Name"])
        for one in session.items(listed, "Parameters", region)
        if (match := GPU_NAME.fullmatch(one["Name"]))
    }
    if not images:
        raise CloudError(
            f"{region or session.region} publishes no Deep Learning AMI with PyTorch and Ubuntu 24.04",
            fix="use a region that does: aws ssm get-parameters-by-path --recursive --path " + GPU_FOLDER,
        )
    return images[max(images)]
