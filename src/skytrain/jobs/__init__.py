"""Jobs: the processes that train a run on one machine, how they are supervised, and how they end together.

Nothing is imported here: a worker ties itself to its supervisor before it loads anything that takes time.
"""

from ..lazy import public_names

__getattr__, __dir__, __all__ = public_names(__name__, __file__)
