"""An account that does not exist, for dry runs where none is set up: its ids are placeholders, and nobody is asked."""

from __future__ import annotations

import atexit
import re
import shutil
import tempfile
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

from ..config import CloudConfig
from ..planning import ImageLine
from .calls import Call
from .errors import CloudError
from .machine_images import MachineImage
from .outputs import CLOUD_FILE
from .session import AwsIdentity, AwsSession

ACCOUNT = "111122223333"  # that AWS uses in its documentation
FOLDER = Path(__file__).with_name("preview_account")
COPY = "skytrain-preview-"  # how the names of its copies for other regions begin
REGION = "us-east-1"  # of the placeholders in that folder
PREVIEW_NOTE = (
    "no account is set up in this folder: account, bucket, subnets, roles and images below are placeholders, prices are "
    "the catalogue's, and nothing was checked (docs/aws.md)"
)


def is_preview(cloud: CloudConfig) -> bool:
    """Return whether these are the settings of the account that does not exist."""
    return cloud.account == ACCOUNT


def account_folders(folders: Sequence[Path], overrides: Sequence[str] = (), region: str | None = None) -> list[Path]:
    """Return the folders of groups; where none of them has an account, with one that has placeholders.

    They are in the region that `overrides` give to cloud.region, else in `region`.
    """
    if any((folder / CLOUD_FILE).is_file() for folder in [*folders, Path()]):
        return [*folders]
    typed = [word.partition("=")[2] for word in overrides if word.startswith("cloud.region=")]
    wanted = typed[-1] if typed else region
    return [*folders, FOLDER if wanted in (None, "null", REGION) else _folder_in(str(wanted))]


def is_preview_folder(folder: Path) -> bool:
    """Return whether a folder of groups has the placeholders."""
    return folder == FOLDER or folder.name.startswith(COPY)


@cache
def _folder_in(region: str) -> Path:
    """Return a folder with the placeholders in another region, which goes when the command ends."""
    lines = (FOLDER / CLOUD_FILE).read_text(encoding="utf-8").splitlines(keepends=True)
    kept = [line for line in lines if not re.match(rf"\s+{REGION}[d-z]:", line)]  # most regions have three zones
    folder = Path(tempfile.mkdtemp(prefix=COPY))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    shutil.copytree(FOLDER, folder, dirs_exist_ok=True)
    (folder / CLOUD_FILE).write_text("".join(kept).replace(REGION, region), encoding="utf-8")
    return folder


class PreviewSession(AwsSession):
    """A session that sends nothing."""

    def __init__(self, region: str) -> None:
        super().__init__(None, region, ACCOUNT)

    @property
    def identity(self) -> AwsIdentity:
        return AwsIdentity(ACCOUNT, f"arn:aws:iam::{ACCOUNT}:user/you")

    def client(self, service: str, region: str | None = None) -> Any:
        raise CloudError(
            f"{service} cannot be asked: no account is set up",
            fix="skytrain cloud init (docs/aws.md)",
            cause="credentials",
        )

    def perform(self, call: Call, region: str | None = None) -> dict[str, Any]:
        return dict(self.client(call.service))


def preview_container(cloud: CloudConfig) -> str:
    """Return the container image of a preview: that which `skytrain image push` would name, with no digest."""
    return f"{cloud.image_repository}@sha256:{'0' * 64}"


def preview_image(line: ImageLine) -> MachineImage:
    """Return the image of a preview: the line that a launch would take, and no id."""
    return MachineImage("ami-00000000000000000", line)
