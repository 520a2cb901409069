"""`skytrain train`: trains here."""

from __future__ import annotations

from .options import ConfigDirs, Overrides, compose_overrides


def train(overrides: Overrides = None, config_dir: ConfigDirs = None) -> None:
    """Train on prepared data. The same command again continues where it stopped.

    skytrain train recipe=quickstart trainer.steps=500
    """
    config = compose_overrides(overrides, config_dir).config
    from ..pipelines.train import train as story
    from .console import reporter

    with reporter() as console:
        trained = story(config, console)
    print(trained.summary())
    if trained.outcome == "interrupted":
        raise SystemExit(7)
