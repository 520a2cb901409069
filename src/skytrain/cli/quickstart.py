"""`skytrain quickstart`: the whole pipeline, small, on this machine, offline."""

from __future__ import annotations

from .options import Overrides, compose_overrides


def quickstart(overrides: Overrides = None) -> None:
    """Run the whole pipeline in minutes: prepare, train, evaluate, generate, export. No account, no network, no GPU.

    skytrain quickstart trainer.steps=600
    """
    config = compose_overrides(["recipe=quickstart", *(overrides or [])]).config
    from ..pipelines.quickstart import quickstart as story
    from .console import reporter

    with reporter() as console:
        summary = story(config, console)
    print(summary)
