"""Training: the LightningModule, optimizers, learning-rate schedules, callbacks, and the trainer that joins them."""

from ..lazy import public_names

__getattr__, __dir__, __all__ = public_names(__name__, __file__)
