"""The store: `file://` and `s3://` behind one small interface; verified, resumable, atomic transfers."""

from ..lazy import public_names

__getattr__, __dir__, __all__ = public_names(__name__, __file__)
