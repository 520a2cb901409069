"""`skytrain finish`: evaluate, export and report a trained run, each once."""

from __future__ import annotations

from typing import Annotated

import typer

from .evaluate import TaskOverrides, _in_full
from .options import ConfigDirs, Trusted, compose_overrides

Trained = Annotated[str, typer.Argument(metavar="RUN", help="A run that has a checkpoint.", show_default=False)]


def finish(run: Trained, overrides: TaskOverrides = None, config_dir: ConfigDirs = None, trust: Trusted = None) -> None:
    """Evaluate, export and report a trained run.

    Does what `skytrain evaluate`, `export --to hf` and `report` do, for the run's newest checkpoint, and writes all of it
    into the run's folder of the store. What was done before is not done again, so the same command continues after an
    interruption. Tasks are those of evaluation.tasks, or HellaSwag if there are none. `skytrain launch finish` does it on
    a rented machine, `skytrain launch pipeline` as the last stage of the whole job.

    \\b
    Examples:
      skytrain finish my-run
      skytrain finish my-run tasks=[hellaswag,lambada] limit=1000
    """
    config = compose_overrides(_in_full(overrides), config_dir, trusted=trust).config
    from ..pipelines.finish import finish as pipeline
    from .console import reporter

    with reporter() as console:
        done = pipeline(config, run, console)
    print(f"{done.label}\n  scores {done.scores}\n  export {done.export}\n  page   {done.page}")
