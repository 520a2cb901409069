"""`skytrain quickstart`: the whole pipeline, small, on this machine, offline."""

from __future__ import annotations

from .options import ConfigDirs, Overrides, compose_overrides


def quickstart(overrides: Overrides = None, config_dir: ConfigDirs = None) -> None:
    """Run the whole pipeline, small, on this machine, in minutes.

    Prepare, train, evaluate, generate, export: no account, no network, no GPU.

    skytrain quickstart trainer.steps=600
    """
    config = compose_overrides(["recipe=quickstart", *(overrides or [])], config_dir).config
    from ..pipelines.quickstart import quickstart as story
    from .console import reporter

    with reporter() as console:
        summary = story(config, console)
    print(summary)
