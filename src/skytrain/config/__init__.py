"""Settings: YAML groups, typed schemas, units, composition, and errors that suggest the nearest valid key."""

from ..lazy import public_names

__getattr__, __dir__, __all__ = public_names(__name__, __file__)
