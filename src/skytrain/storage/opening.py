"""Opens a store from its root path or URL."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import unquote, urlsplit

from ..config import ConfigError, StoreConfig
from .base import Store
from .errors import StoreError
from .folder import FolderStore
from .preview import PREVIEW_BUCKET, PreviewStore
from .retry import Retry


def open_store(config: StoreConfig | str, retry: Retry | None = None) -> Store:
    """Return the store at a plain path, `file:///...` or `s3://bucket/prefix`, without accessing it yet.

    Its operations retry for a minute, which suits interactive use; long jobs use `store.patient`.
    """
    if isinstance(config, str):
        config = StoreConfig(root=config, sse=None, kms_key=None, patience=Retry().seconds)
    scheme, colon, rest = config.root.partition(":")
    kind = scheme.lower()
    if colon and kind in ("s3", "file") and not config.root.startswith(f"{kind}://"):
        meant = f"{kind}://{'/' if kind == 'file' else ''}{rest.lstrip('/')}"
        raise StoreError("open", config.root, "it would be a folder of that name", hint=f"did you mean {meant}?")
    if "://" not in config.root:
        return _folder(config, Path(config.root))
    parts = urlsplit(config.root)
    if parts.scheme == "file":
        if parts.netloc not in ("", "localhost"):
            raise StoreError(
                "open", config.root, f"{parts.netloc!r} is not this machine", hint="file:///folder, with three slashes"
            )
        return _folder(config, Path(unquote(parts.path)))
    if parts.scheme != "s3":
        raise StoreError(
            "open",
            config.root,
            f"{parts.scheme!r} is not a kind of store",
            hint="use a folder, file:///... or s3://bucket/prefix",
        )
    if parts.netloc == PREVIEW_BUCKET:
        return PreviewStore(config.root)
    from .bucket import BucketStore

    return BucketStore(config.root, retry or Retry(), config.sse, config.kms_key)


def _folder(config: StoreConfig, folder: Path) -> FolderStore:
    if config.sse is not None:
        raise ConfigError(
            "store.sse", f"{config.sse!r} is for s3:// only, and store.root is {config.root}", hint="set store.sse=null"
        )
    if not config.root:
        raise ConfigError("store.root", "is empty", hint="use a folder, file:///... or s3://bucket/prefix")
    return FolderStore(folder.expanduser().absolute())
