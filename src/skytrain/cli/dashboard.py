"""`skytrain dashboard`: all runs and sweeps of a store, live, in a browser."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from .options import ConfigDirs, StoreOverrides, compose_overrides

Port = Annotated[
    int | None,
    typer.Option("--port", min=0, max=65535, metavar="N", help="Default: 7007, or a free one.", show_default=False),
]


def dashboard(overrides: StoreOverrides = None, port: Port = None, config_dir: ConfigDirs = None) -> None:
    """Show all runs and dollars of a store live in a browser.

    Choose runs and compare them; open a run for its curves, attempts, costs and settings, or a sweep for its answer. The
    pages follow runs while they train. It never writes to the store, and reads only what has changed. It answers on this
    machine only: if you reach the machine by ssh, use `ssh -L 7007:127.0.0.1:7007 HOST`. Ctrl-C ends it.

    \b
    Examples:
      skytrain dashboard
      skytrain dashboard store.root=s3://bucket/project --port 7008
    """
    from ..pipelines.dashboard import open_dashboard, serve_dashboard

    server = open_dashboard(compose_overrides(overrides, config_dir).config, port)
    print(f"dashboard: {server.url} (Ctrl-C ends it)", flush=True)
    try:
        serve_dashboard(server)
    except KeyboardInterrupt:
        print(file=sys.stderr)
