"""Export: a trained model in the forms that other programs load. Loads torch when a name is asked for."""

from ..lazy import public_names

__getattr__, __dir__, __all__ = public_names(__name__, __file__)
