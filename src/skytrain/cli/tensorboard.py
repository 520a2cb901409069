"""`skytrain tensorboard`: the curves of runs, from the store."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Annotated

import typer

from .options import ConfigDirs, compose_overrides
from .reads import split_words

Arguments = Annotated[
    list[str],
    typer.Argument(
        metavar="RUN... [KEY=VALUE]",
        help="Runs to compare. store.root=s3://bucket/project chooses the store.",
        show_default=False,
    ),
]
Port = Annotated[
    int | None,
    typer.Option("--port", min=0, max=65535, metavar="N", help="Default: 6006, or a free one.", show_default=False),
]
Host = Annotated[str, typer.Option("--host", metavar="ADDRESS", help="Where it listens; 0.0.0.0: everywhere.")]


def tensorboard(
    arguments: Arguments, port: Port = None, host: Host = "127.0.0.1", config_dir: ConfigDirs = None
) -> None:
    """Show the curves of runs in TensorBoard.

    Copies the event files of the runs from the store, starts TensorBoard, and copies what is added while it runs. It
    works for runs on any machine, while they train and afterwards. Ctrl-C ends it.

    \b
    Examples:
      skytrain tensorboard my-run
      skytrain tensorboard my-run another-run cloud=ec2 --port 6007
    """
    from ..config import SkytrainError
    from ..pipelines.tensorboard import BoardFolder, check_installed, choose_port, running_board, serve_board
    from .console import reporter

    check_installed()
    runs, settings = split_words(dict.fromkeys(arguments))
    if not runs:
        raise SkytrainError("give at least one run\n  `skytrain status` lists them")
    config = compose_overrides(settings, config_dir).config
    chosen = choose_port(host, port)
    with tempfile.TemporaryDirectory(prefix="skytrain-tensorboard-") as folder, reporter() as console:
        board = BoardFolder(config, runs, Path(folder))
        board.refresh()
        console.note(f"TensorBoard starts at http://{host}:{chosen}/; Ctrl-C ends it")
        try:
            with running_board(Path(folder), host, chosen) as process:
                code = serve_board(board, process, console.note)
        except KeyboardInterrupt:
            print(file=sys.stderr)
            return
    raise typer.Exit(code)
