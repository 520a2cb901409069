"""`skytrain logs`: the log of a run, from the store."""

from __future__ import annotations

import dataclasses
import json
from typing import TYPE_CHECKING, Annotated

import typer

from ..config import SkytrainError
from .options import ConfigDirs, RunName, StoreOverrides, compose_overrides

if TYPE_CHECKING:
    from ..runs import LogSelection

Follow = Annotated[bool, typer.Option("--follow", "-f", help="Keep printing new lines until the run ends.")]
Attempt = Annotated[
    int | None,
    typer.Option("--attempt", min=0, metavar="N", help="This attempt. Default: the newest.", show_default=False),
]
RankOption = Annotated[
    list[str] | None,
    typer.Option("--rank", metavar="N|all", help="This rank; repeatable. Default: rank 0.", show_default=False),
]
Node = Annotated[
    int | None, typer.Option("--node", min=0, metavar="N", help="All ranks of this machine.", show_default=False)
]
Count = Annotated[int, typer.Option("--lines", "-n", min=0, metavar="N", help="The last N entries; 0 for all of them.")]
JsonLines = Annotated[bool, typer.Option("--json", help="Print one JSON object a line.")]


def logs(
    run: RunName,
    overrides: StoreOverrides = None,
    follow: Follow = False,
    attempt: Attempt = None,
    rank: RankOption = None,
    node: Node = None,
    lines: Count = 100,
    config_dir: ConfigDirs = None,
    as_json: JsonLines = False,
) -> None:
    """Print the log of a run, from the store.

    For a sweep, it prints the log of the newest trial. Every rank writes its log to the store every few seconds,
    with warnings of libraries and the traceback of an error. So it can be read from any machine, during the run and
    after its machines are gone.

    Before a launched run has such a log, it prints what its job wrote where it was launched; --follow then
    continues with the run's log.

    \b
    Examples:
      skytrain logs my-run --follow
      skytrain logs my-run --attempt 2 --rank 3 --lines 0
      skytrain logs my-run --node 1 store.root=s3://bucket/project
    """
    from ..config import visible
    from ..pipelines.logs import EarlyLog, has_log, log_text, logs as pipeline
    from ..targets import target_of
    from ..tuning import newest_trial_run

    config = compose_overrides(overrides, config_dir).config
    run = newest_trial_run(config, run) or run  # of a sweep
    selection = _selection(attempt, rank, node)
    several = selection.node is not None or selection.ranks is None or len(selection.ranks) > 1
    if attempt is None and not has_log(config, run):
        early = EarlyLog(target_of(config), config, run)
        for text in early.lines(lines or None, follow=follow):
            print(json.dumps({"text": text}) if as_json else visible(text), flush=follow)
        if early.found and not has_log(config, run):
            return
    for line in pipeline(config, run, selection, lines or None, follow=follow):
        text = json.dumps(dataclasses.asdict(line)) if as_json else visible(log_text(line, with_rank=several))
        print(text, flush=follow)


def _selection(attempt: int | None, rank: list[str] | None, node: int | None) -> LogSelection:
    from ..runs import LogSelection

    if rank and node is not None:
        raise SkytrainError("--rank and --node: give one of them")
    if rank and (wrong := [word for word in rank if word != "all" and not word.isdigit()]):
        raise SkytrainError(f"--rank {wrong[0]}: give a number or all")
    chosen = frozenset({0}) if not rank else None if "all" in rank else frozenset(map(int, rank))
    return LogSelection(attempt, chosen, node)
