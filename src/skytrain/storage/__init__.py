"""The store: `file://` and `s3://` behind one small interface; verified, resumable, atomic transfers."""

from .base import Progress, Stat, Store
from .errors import AccessDenied, NotFound, StoreError, StoreUnreachable
from .fsspec_face import register_fsspec
from .opening import open_store
from .retry import Patience, Retry

__all__ = [
    "AccessDenied",
    "NotFound",
    "Patience",
    "Progress",
    "Retry",
    "Stat",
    "Store",
    "StoreError",
    "StoreUnreachable",
    "open_store",
    "register_fsspec",
]
