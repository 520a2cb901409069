"""AWS: sessions, typed calls, errors with their remedy, tags, the metadata service, prices and CloudWatch."""

from ..lazy import public_names

__getattr__, __dir__, __all__ = public_names(__name__, __file__)
