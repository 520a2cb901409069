"""`s3://` for libraries that open files through fsspec: Lightning's checkpoints and loggers, pandas, pyarrow."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

from ..config import MissingExtra, StoreConfig
from .aws import s3_arguments
from .retry import Retry


def register_fsspec(config: StoreConfig | None = None) -> None:
    """Make `fsspec.open("s3://...")` reach the same endpoint with the same credentials and encryption as the store."""
    if find_spec("fsspec") is None:
        raise MissingExtra("fsspec", "train")
    import fsspec
    from obstore.fsspec import FsspecStore

    sse, kms_key = (config.sse, config.kms_key) if config else (None, None)
    arguments = s3_arguments(config.root if config else "s3://", Retry(), sse, kms_key)

    class S3FileSystem(FsspecStore):
        protocol = "s3"

        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__("s3", *args, **{**arguments, **kwargs})

    fsspec.register_implementation("s3", S3FileSystem, clobber=True)
