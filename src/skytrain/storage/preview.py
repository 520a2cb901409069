"""The bucket of an account that does not exist, for dry runs: it is empty, and nothing can be written."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from .errors import StoreError
from .folder import FolderStore

PREVIEW_BUCKET = "example-111122223333"  # the number is that of AWS's documentation


class PreviewStore(FolderStore):
    """An empty store with the URLs of a bucket."""

    def __init__(self, root: str) -> None:
        super().__init__(Path(tempfile.gettempdir()) / "skytrain-preview" / "no-such-folder")
        self.root = root.rstrip("/")

    def url(self, key: str) -> str:
        return f"{self.root}/{key}" if key else self.root

    def local_path(self, key: str) -> None:
        return None

    def write(self, key: str, data: bytes) -> NoReturn:
        raise StoreError("write", self.url(key), "no account is set up", hint="skytrain cloud init (docs/aws.md)")

    def write_parts(self, key: str, parts: Sequence[memoryview]) -> NoReturn:
        self.write(key, b"")

    def create(self, key: str, data: bytes) -> NoReturn:
        self.write(key, b"")

    def upload(self, path: Path | str, key: str, progress: object = None, sha256: str | None = None) -> NoReturn:
        self.write(key, b"")
