"""The planner as it is now beside what h200.py measured: no GPU needed, every prediction is made again from h200.json.

    python benchmarks/planning/h200_offline.py         prints the tables and writes h200_offline.md beside this file

No blind test: the planner's constants for an H200, its host and its allocator were fitted on these very measurements.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from h200 import GPT2, LLAMA, MEDIUM, SINGLE

from skytrain.planning.communication import Node
from skytrain.planning.measurements import Measurement, Prediction, decoder_fields, predict
from skytrain.planning.memory import CONTEXT_BYTES, Job, rank_memory
from skytrain.planning.search import largest_micro_batch

HERE = Path(__file__).parent
GIB = 2**30
MODELS = {model.name: model for model in (GPT2, MEDIUM, LLAMA)}
# One calibration for each model and path, where the device is clearly the limit: (length, micro-batch).
CALIBRATED_AT = {
    ("gpt2-124m", "fused"): (1024, 64),
    ("gpt2-124m", "eager"): (1024, 64),
    ("gpt2-355m", "fused"): (1024, 16),
    ("llama-3.2-1b", "eager"): (2048, 4),
}
Row = dict[str, Any]


def job_of(row: Row, **changes: Any) -> Job:
    job = Job(
        MODELS[row["model"]],
        row["length"],
        row.get("micro_batch", 1),
        compiled=row["path"] == "compiled",
        fused=row["path"] == "fused",
        checkpointing=row.get("checkpointing", False),
    )
    return replace(job, **changes)


def measurement(row: Row, found: Row, seconds: float) -> Measurement:
    model = MODELS[row["model"]]
    return Measurement(
        found["device"], 1, model.name, decoder_fields(model), row["length"], row["micro_batch"], 1, "single",
        "bf16-mixed", row["path"], False, seconds, None, "", found["torch"],
    )  # fmt: skip


def times(found: Row) -> list[tuple[Row, dict[str, Prediction]]]:
    """Each timed row with its predictions, calibrated by the worst step and by the median step."""
    node = Node.of_device(found["device"])
    assert node is not None
    rows = []
    for row in found["time"]:
        at = CALIBRATED_AT.get((row["model"], row["path"]))
        near = [one for one in found["time"] if (one["model"], one["path"]) == (row["model"], row["path"])]
        known = [one for one in near if (one["length"], one["micro_batch"]) == at]
        predictions = {
            which: predict(job_of(row), SINGLE, node, [measurement(one, found, one[which]) for one in known])
            for which in ("median_seconds", "worst_seconds")
        }
        rows.append((row, predictions))
    return rows


def elsewhere(found: Row) -> list[tuple[Row, list[float]]]:
    """Each row that can calibrate the device, with the errors beside the medians of the others that it calibrates."""
    node = Node.of_device(found["device"])
    assert node is not None
    rows = []
    for row in found["time"]:
        known = [measurement(row, found, row["median_seconds"])]
        others = [one for one in found["time"] if (one["model"], one["path"]) == (row["model"], row["path"])]
        predicted = [(one, predict(job_of(one), SINGLE, node, known)) for one in others if one is not row]
        errors = [
            found_step.seconds / one["median_seconds"] - 1
            for one, found_step in predicted
            if found_step.source == "calibrated"
        ]
        if errors:
            rows.append((row, errors))
    return rows


def largest(found: Row) -> list[Row]:
    """The largest micro-batch that now is called fitting, and what it reserves by the ratio measured at the largest one that was timed."""
    rows = []
    for tried in found["largest"]:
        keys = ("model", "path", "checkpointing")
        like = [one for one in found["memory"] if all(one[key] == tried[key] for key in keys)]
        reference = max(like, key=lambda one: one["micro_batch"])
        job = job_of(tried, accumulation=2)
        size = largest_micro_batch(job, SINGLE, found["memory_bytes"])
        allocated = rank_memory(replace(job, micro_batch=size), SINGLE).allocated
        reserved = allocated * reference["reserved_bytes"] / reference["predicted_bytes"] + CONTEXT_BYTES
        failed = tried["largest"] if not tried["runs"] else tried["beyond"]
        rows.append(
            tried
            | {
                "now": size,
                "reserved": reserved,
                "fits_by_reserved": reserved <= found["memory_bytes"],
                "ran": tried["runs"] and size <= tried["largest"],
                "quarter_more": (more := -(-size * 5 // 4)),
                "more_allocated": rank_memory(replace(job, micro_batch=more), SINGLE).allocated,
                "failed_at": failed,
            }
        )
    return rows


def report(found: Row) -> str:
    total = found["memory_bytes"] / GIB
    lines = [
        f"# The planner as it is now beside the steps measured on {found['device']}",
        "",
        f"Largest micro-batch, of {total:.1f} GiB that torch reports. `by reserved` is the memory by the ratio of reserved to allocated that",
        "was measured at the largest micro-batch of the memory table. Nothing was run again.",
        "",
        "| model | checkpointing | called fitting before: ran | called fitting now | by reserved, GiB | would run | a quarter more | allocates, GiB | out of memory at |",
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for row in largest(found):
        would = f"yes: {row['largest']} ran" if row["ran"] else "yes" if row["fits_by_reserved"] else "no"
        lines.append(
            f"| {row['model']}, {row['path']} | {'yes' if row['checkpointing'] else 'no'} | {row['largest']}: {'yes' if row['runs'] else 'no'} | {row['now']} | {row['reserved'] / GIB:.1f} | {would} | {row['quarter_more']} | {row['more_allocated'] / GIB:.1f} | {row['failed_at']} |"
        )
    lines += [
        "",
        "Step time: predicted ms after calibration by the median and by the worst of steps 10-19 of one row of each model and path.",
        "",
        "| model | mode | length | micro-batch | predicted | median | error | predicted | worst | error | prediction |",
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for row, predictions in times(found):
        cells = []
        for which, prediction in predictions.items():
            error = prediction.seconds / row[which] - 1
            cells += [f"{prediction.seconds * 1e3:.1f}", f"{row[which] * 1e3:.1f}", f"{error:+.1%}"]
        source = predictions["worst_seconds"].source
        lines.append(
            f"| {row['model']} | {row['path']} | {row['length']} | {row['micro_batch']} | {' | '.join(cells)} | {source} |"
        )
    lines += [
        "",
        "Errors beside the median of the other rows that the device limits, by the row that calibrates.",
        "",
        "| model | mode | calibrated at | least | most |",
        "| --- | --- | --- | --- | --- |",
    ]
    lines += [
        f"| {row['model']} | {row['path']} | {row['micro_batch']} x {row['length']} | {min(errors):+.1%} | {max(errors):+.1%} |"
        for row, errors in elsewhere(found)
    ]
    return "\n".join([*lines, ""])


if __name__ == "__main__":
    text = report(json.loads((HERE / "h200.json").read_text()))
    print(text)
    (HERE / "h200_offline.md").write_text(text)
