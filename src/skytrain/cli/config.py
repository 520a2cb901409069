"""`skytrain config`: what a run would use, and where each value came from."""

from __future__ import annotations

import json

import typer

from .options import ConfigDirs, Json, Overrides, compose_overrides

app = typer.Typer(no_args_is_help=True, rich_markup_mode=None)


@app.callback()  # without it Typer would take the only command for the verb itself
def group() -> None:
    """Look at configuration.

    skytrain config show recipe=quickstart
    """


@app.command()
def show(overrides: Overrides = None, config_dir: ConfigDirs = None, as_json: Json = False) -> None:
    """Print every setting of a run, and what set it.

    skytrain config show recipe=quickstart trainer.steps=500
    """
    from ..config import flatten

    composed = compose_overrides(overrides, config_dir)
    if as_json:
        print(json.dumps(composed.values, indent=2))
        return
    leaves = flatten(composed.values)
    width = max(len(key) for key in leaves)
    shown = {
        key: "null" if value is None else str(value).lower() if isinstance(value, bool) else str(value)
        for key, value in leaves.items()
    }
    value_width = min(48, max(len(text) for text in shown.values()))
    for key, text in shown.items():
        print(f"{key:<{width}}  {text:<{value_width}}  {composed.origins.get(key, '')}".rstrip())
