"""`skytrain evaluate`: loss on held-out text, downstream tasks, and the comparison of two models."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from .options import ConfigDirs, Json, Precision, Split, Trusted, compose_overrides
from .reads import refuse_options

if TYPE_CHECKING:
    from ..config import Config

SHORT = ("tasks", "limit", "folder")  # of evaluation.tasks, ...


def _in_full(overrides: list[str] | None) -> list[str]:
    """Return the overrides with short keys in full: `tasks=...` means `evaluation.tasks=...`."""
    return [f"evaluation.{text}" if text.partition("=")[0] in SHORT else text for text in overrides or []]


TaskOverrides = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="KEY=VALUE",
        help="What to score: tasks=[hellaswag,my.jsonl], limit=1000, evaluation.data.hellaswag=FILE; and any other setting. "
        "`skytrain config explain evaluation` explains them.",
        callback=_in_full,
        show_default=False,
    ),
]

Sources = Annotated[
    list[str] | None,
    typer.Option(
        "--from",
        metavar="RUN[@STEP]",
        help="A run, one of its checkpoints (@all: each of them), or an exported folder. Repeatable, with tasks. "
        "Default: the newest run with a checkpoint.",
        show_default=False,
    ),
]
FirstTokens = Annotated[
    str | None,
    typer.Option(
        metavar="COUNT",
        help="Without tasks: use only the first COUNT tokens, such as 100K. Default: all.",
        show_default=False,
    ),
]
HarnessTasks = Annotated[
    str | None,
    typer.Option(
        metavar="TASKS",
        help="Run lm-evaluation-harness on these of its tasks (hellaswag,arc_easy) instead: "
        "pip install 'skytrain[harness]'. limit=N and folder=FOLDER apply.",
        show_default=False,
    ),
]


def evaluate(
    context: typer.Context,
    overrides: TaskOverrides = None,
    config_dir: ConfigDirs = None,
    trust: Trusted = None,
    source: Sources = None,
    tokens: FirstTokens = None,
    split: Split = "validation",
    compare: Annotated[
        bool, typer.Option("--compare", help="Compare two models item by item: which is better, or is it noise?")
    ] = False,
    items: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Also write each item's answer to FILE, as JSON lines.", show_default=False),
    ] = None,
    harness: HarnessTasks = None,
    precision: Precision = None,
    as_json: Json = False,
) -> None:
    """Measure a model: loss on held-out text, or downstream tasks.

    Without tasks: loss, perplexity and bits per byte. A run is measured on the data it was trained with, an exported
    folder on the data that KEY=VALUE chooses. With tasks=[...]: accuracy and the like, by the conventions of llm.c
    and lm-evaluation-harness. Uses a GPU if there is one; trainer.device=cpu avoids it.

    \b
    Examples:
      skytrain evaluate
      skytrain evaluate --from my-run@1000 --tokens 1M
      skytrain evaluate --from my-run tasks=[hellaswag,lambada] limit=1000
      skytrain evaluate --from my-run@all tasks=[hellaswag]
      skytrain evaluate --from my-run --from my-model --compare tasks=[arc-easy]
      skytrain evaluate --from my-run --harness hellaswag,arc_easy limit=500
    """
    config = compose_overrides(_in_full(overrides), config_dir, trusted=trust).config
    sources = tuple(source or ())
    if harness is not None or config.evaluation.tasks:
        refuse_options(context, ["tokens", "split"], "tasks have items of their own; limit=N takes the first N of them")
    if harness is not None:
        _refuse_with_harness(config, sources, compare, items)
        _harness(config, sources[0] if sources else None, precision, harness, as_json)
    elif config.evaluation.tasks:
        _tasks(config, sources, precision, Output(compare, items, as_json))
    else:
        _refuse_without_tasks(sources, compare, items, _in_full(overrides))
        _loss(config, sources[0] if sources else None, split, tokens, precision, as_json)


@dataclasses.dataclass(frozen=True)
class Output:
    """The way in which results are shown."""

    compare: bool
    items: Path | None
    as_json: bool


def _refuse_without_tasks(sources: tuple[str, ...], compare: bool, items: Path | None, overrides: list[str]) -> None:
    from ..config import SkytrainError

    if given := next((word for word in overrides if word.startswith("evaluation.")), None):
        raise SkytrainError(
            f"{given} is about tasks, and none is named\n  add tasks=[hellaswag], or use --tokens COUNT"
        )

    if len(sources) > 1 or compare or items is not None:
        raise SkytrainError("several models, --compare and --items need tasks\n  add tasks=[hellaswag]")


def _refuse_with_harness(config: Config, sources: tuple[str, ...], compare: bool, items: Path | None) -> None:
    from ..config import SkytrainError

    if config.evaluation.tasks or len(sources) > 1 or compare or items is not None:
        raise SkytrainError("--harness takes one model, and neither tasks=..., --compare nor --items")


def _harness(config: Config, source: str | None, precision: str | None, tasks: str, as_json: bool) -> None:
    from ..pipelines.evaluate import evaluate_harness
    from .console import reporter

    with reporter() as console:
        label, measured = evaluate_harness(config, source, precision, tasks.split(","), console)
    if as_json:
        counts = {name: each["effective"] for name, each in measured["n-samples"].items()}
        print(json.dumps({"model": label, "items": counts, "results": measured["results"]}, default=str))
        return
    from lm_eval.utils import make_table

    print(label)
    print(make_table(measured))
    for name, each in measured["n-samples"].items():
        print(f"{name}: {each['effective']} of {each['original']} items")


def _loss(
    config: Config, source: str | None, split: str, tokens: str | None, precision: str | None, as_json: bool
) -> None:
    from ..pipelines.evaluate import LossRequest, evaluate as pipeline, finite
    from .console import reporter

    with reporter() as console:
        label, report = pipeline(config, LossRequest(source, split, tokens, precision), console)
    if as_json:
        values = {name: finite(value) for name, value in dataclasses.asdict(report).items()}
        print(json.dumps({"model": label, "split": split, **values}))
    else:
        print(
            f"{label} on {report.tokens} {split} tokens: loss {report.loss:.4f} | "
            f"perplexity {report.perplexity:.2f} | {report.bits_per_byte:.4f} bits per byte"
        )


def _tasks(config: Config, sources: tuple[str, ...], precision: str | None, output: Output) -> None:
    from ..config import SkytrainError
    from ..pipelines.evaluate import TasksRequest, compare_models, evaluate_tasks, results_as_json, write_answers
    from ..report import comparison_table, results_table
    from .console import reporter

    if output.items is not None and not output.items.parent.is_dir():
        raise SkytrainError(f"--items {output.items}: there is no folder {output.items.parent}")
    if output.compare and len(sources) < 2:
        raise SkytrainError(f"--compare takes two models, and {len(sources)} were given\n  add --from A --from B")
    with reporter() as console:
        results = list(evaluate_tasks(config, TasksRequest(sources, precision, output.compare), console))
    differences = compare_models(*results) if output.compare else []
    if output.items is not None:
        write_answers(results, output.items)
    if output.as_json:
        print(json.dumps(results_as_json(results, differences), allow_nan=False))
        return
    print(results_table(results))
    if differences:
        print(f"\n{comparison_table(results[0].model, results[1].model, differences)}")
