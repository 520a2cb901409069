"""Cost estimates for runs: hardware, prices, FLOPs, memory, communication, throughput, offers. No torch."""

from ..lazy import public_names

__getattr__, __dir__, __all__ = public_names(__name__, __file__)
