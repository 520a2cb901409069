"""How `skytrain evaluate` shows what tasks measured: a table, a curve over steps, JSON."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .console import print_table

if TYPE_CHECKING:
    from ..evaluation import Measure, PairedDifference, TaskResult
    from ..pipelines.evaluate_tasks import ModelResults


def show_results(found: Sequence[ModelResults]) -> None:
    """One row for each scoring, with a column for each model; over three steps or more of a run, a curve too."""
    rows = [("TASK", "SCORING", *(each.model for each in found), "ITEMS")]
    for number, task in enumerate(found[0].results):
        same = [each.results[number] for each in found]
        for scoring, measure in task.measures.items():
            values = [_with_error(one.measures.get(scoring)) for one in same]
            rows.append((task.task, scoring, *values, _items(task, measure)))
    print_table(rows)
    for number, task in enumerate(found[0].results):
        cut = max(each.results[number].truncated for each in found)
        if cut:
            print(f"{task.task}: {cut} items lost the beginning of a context that is longer than the model sees")
    _show_curves(found)


def _items(task: TaskResult, measure: Measure) -> str:
    count = len(measure.weights)
    return f"{count}" if count == task.available else f"{count} of {task.available}"


def _with_error(measure: Measure | None) -> str:
    if measure is None:
        return "-"
    return f"{measure.value:.4f}" + ("" if math.isnan(measure.stderr) else f" ± {measure.stderr:.4f}")


def _show_curves(found: Sequence[ModelResults]) -> None:
    from ..report import metric_curve

    steps = [each.step for each in found]
    if len(found) < 3 or None in steps or len({each.model.partition("@")[0] for each in found}) > 1:
        return
    for number, task in enumerate(found[0].results):
        scoring = "harness_acc_norm" if "harness_acc_norm" in task.measures else next(iter(task.measures))
        points = [(each.step, each.results[number].measures[scoring].value) for each in found if each.step is not None]
        print()
        print(metric_curve(points, f"{task.task}: {scoring}"))


def show_comparison(first: str, second: str, differences: Sequence[PairedDifference]) -> None:
    print(f"second ({second}) minus first ({first}), over the same items:")
    rows = [("TASK", "SCORING", "FIRST", "SECOND", "DIFFERENCE", "95% INTERVAL", "P", "VERDICT")]
    for each in differences:
        interval = f"{each.low:+.4f} to {each.high:+.4f}"
        values = (f"{each.first:.4f}", f"{each.second:.4f}", f"{each.difference:+.4f}", interval, f"{each.p_value:.3g}")
        rows.append((each.task, each.scoring, *values, each.verdict))
    print_table(rows)


def results_as_json(found: Sequence[ModelResults], differences: Sequence[PairedDifference]) -> Any:
    """One object for a model, a list of them for several; with a comparison, both under their names."""
    models = [
        {
            "model": each.model,
            "step": each.step,
            "seconds": round(each.seconds, 3),
            "tasks": {result.task: _result_as_json(result) for result in each.results},
        }
        for each in found
    ]
    if differences:
        pairs = [
            {**{name: finite(value) for name, value in vars(each).items()}, "verdict": each.verdict}
            for each in differences
        ]
        return {"models": models, "comparison": pairs}
    return models[0] if len(models) == 1 else models


def _result_as_json(result: TaskResult) -> dict[str, Any]:
    return {
        "items": result.items,
        "available": result.available,
        "truncated": result.truncated,
        "metrics": {
            scoring: {"value": finite(measure.value), "stderr": finite(measure.stderr)}
            for scoring, measure in result.measures.items()
        },
    }


def finite(value: Any) -> Any:
    """JSON has neither infinity nor NaN: null."""
    return None if isinstance(value, float) and not math.isfinite(value) else value


def write_answers(found: Sequence[ModelResults], path: Path) -> None:
    with path.open("w", encoding="utf-8") as file:
        for each in found:
            for result in each.results:
                for answer in result.answers:
                    file.write(json.dumps({"model": each.model, "task": result.task, **answer}) + "\n")
