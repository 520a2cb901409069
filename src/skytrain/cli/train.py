"""`skytrain train`: trains here; under torchrun, on every rank."""

from __future__ import annotations

from ..parallel import Ranks
from .options import ConfigDirs, Overrides, compose_overrides


def train(overrides: Overrides = None, config_dir: ConfigDirs = None) -> None:
    """Train on prepared data. The same command again continues where it stopped.

    skytrain train recipe=quickstart trainer.steps=500

    torchrun --nproc-per-node 4 -m skytrain train parallel=fsdp
    """
    config = compose_overrides(overrides, config_dir).config
    from ..pipelines.train import train as story
    from .console import reporter

    with reporter() as console:
        trained = story(config, console)
    print(trained.summary())
    # torchrun takes any other code for a crash, and starts the workers again; the outcome is in the attempt's record.
    if trained.outcome == "interrupted" and Ranks.from_environment().world_size == 1:
        raise SystemExit(7)
