"""`skytrain quickstart`: the whole pipeline on this machine, with a small model, offline."""

from __future__ import annotations

import typer

from .options import ConfigDirs, Overrides, compose_overrides


def quickstart(overrides: Overrides = None, config_dir: ConfigDirs = None) -> None:
    """Run the whole pipeline with a small model, in minutes.

    Prepares the documentation that ships with Python, trains, evaluates, generates and exports.
    Needs no account, no network and no GPU.

    \b
    Examples:
      skytrain quickstart
      skytrain quickstart trainer.steps=600
    """
    config = compose_overrides(["recipe=quickstart", *(overrides or [])], config_dir).config
    from ..pipelines.quickstart import quickstart as pipeline
    from .console import reporter

    with reporter() as console:
        done = pipeline(config, console)
    print(done.summary)
    if done.exit_code:
        raise typer.Exit(done.exit_code)
