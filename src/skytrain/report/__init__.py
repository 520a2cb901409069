"""Report: what a run looks like to a person. So far: its loss curve in the terminal."""

from .terminal import loss_curve

__all__ = ["loss_curve"]
