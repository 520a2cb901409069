"""Cloud init: Terraform's outputs become `cloud/aws.yaml` and `store/aws.yaml`, checked by composing them."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..aws import cloud_files
from ..config import Config, SkytrainError, compose


@dataclass(frozen=True)
class CloudFiles:
    """The files that were written, and the configuration that cloud=aws now selects."""

    written: list[Path]
    config: Config


def cloud_init(outputs: dict[str, Any], folder: Path, owner: str | None, force: bool) -> CloudFiles:
    """Write the files into `folder`. Existing files with other contents are replaced only with `force`."""
    files = cloud_files(outputs, owner)
    changed = [folder / name for name, text in files.items() if _differs(folder / name, text)]
    if changed and not force:
        raise SkytrainError(
            f"{', '.join(map(str, changed))}: exists with other contents\n  --force replaces it; nothing was written"
        )
    config = _composed(files)
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return CloudFiles([folder / name for name in files], config)


def _differs(path: Path, text: str) -> bool:
    return path.exists() and path.read_text() != text


def _composed(files: dict[Path, str]) -> Config:
    """Compose the new files in a temporary folder, so that wrong outputs leave no file behind."""
    with tempfile.TemporaryDirectory() as folder:
        for name, text in files.items():
            (Path(folder) / name).parent.mkdir(parents=True, exist_ok=True)
            (Path(folder) / name).write_text(text)
        return compose(["cloud=aws"], [folder]).config
