"""A run whose loss rises and stays high is stopped."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from skytrain.training import Diverged
from skytrain.training.callbacks import DivergenceWatch


def watch(losses: list[float]) -> int:
    """Feeds the losses of logged steps; the number that were seen."""
    log: Any = SimpleNamespace(every=1, last={})
    watcher, nothing = DivergenceWatch(log, nats=1.0), None
    for step, loss in enumerate(losses, 1):
        log.last = {"train/loss": loss}
        watcher.at_step(nothing, nothing, step)  # type: ignore[arg-type]
    return len(losses)


def test_a_loss_that_rises_and_stays_is_a_divergence():
    with pytest.raises(Diverged, match=r"more than trainer.diverged_nats=1 above its lowest, 4\."):
        watch([9.0 - 0.3 * step for step in range(20)] + [6.5] * 10)


def test_a_falling_loss_and_a_single_spike_are_not():
    assert watch([9.0 - 0.3 * step for step in range(20)] + [6.0, 3.4, 3.4, 3.4]) == 24
