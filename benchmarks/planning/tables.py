"""Compares what was measured on an H200 with today's planner: predictions are recomputed from the logs, no GPU needed.

    python benchmarks/planning/tables.py         prints the tables and writes h200.md beside this file

h200_steps.csv has the steps that other benchmarks measured, most of them with the fused kernels of today: matrix products by
the algorithms that were fastest when they were timed. The visits of h200.py are older. What such products gain is fitted
on the steps of GPT-2 124M; those of the other models only check it.
"""

from __future__ import annotations

import csv
import json
import math
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from shapes import MODELS, SINGLE

from skytrain.config import DecoderConfig, compose
from skytrain.planning import Measurement, Node, decoder_fields, find_gpu, largest_micro_batch
from skytrain.planning.measurements import Prediction, predict
from skytrain.planning.memory import TrainingJob, rank_memory, update_facts
from skytrain.planning.throughput import step_time

HERE = Path(__file__).parent
GIB = 2**30
QUARTER_MORE = 1.25
# The last long one, the last one, and what only the one before it had time for.
VISITS = ("h200_long.json", "h200.json", "h200_earlier.json")
MODE = ("model", "length", "path", "precision", "checkpointing")
Row = dict[str, Any]


def job_of(row: Row) -> TrainingJob:
    return TrainingJob(
        MODELS[row["model"]],
        row["length"],
        row["micro_batch"],
        row.get("accumulation", 1),
        precision=row["precision"],
        compiled=row["path"] == "compiled",
        fused=row["path"] == "fused",
        checkpointing=row["checkpointing"],
        graphs=row.get("graphs", False),
    )


def mode_of(row: Row) -> str:
    again = ", checkpointing" if row["checkpointing"] else ""
    precision = "" if row["precision"] == "bf16-mixed" else f", {row['precision']}"
    return f"{row['model']}, {row['path']}{precision}{again}"


def memory_rows(found: Row) -> list[Row]:
    """The peaks of the memory probes, and those of the timed steps where they were kept."""
    timed = [row for row in found["time"] if row["allocated"] and not row.get("graphs")]
    return found["memory"] + [row | {"ran": True, "accumulation": 1, "reason": None} for row in timed]


def memory_error(row: Row) -> float | None:
    """Error of the predicted peak against what torch allocated; None where nothing was."""
    return (
        rank_memory(job_of(row), SINGLE).allocated / row["allocated"] - 1 if row["ran"] and row["allocated"] else None
    )


def largest(found: Row) -> list[Row]:
    """Return, for each mode, the largest micro-batch that is called fitting now, and what the attempts say of it and of a quarter more."""
    rows = []
    for mode in dict.fromkeys(tuple(row[key] for key in MODE) for row in found["largest"]):
        tried = [row for row in found["largest"] if tuple(row[key] for key in MODE) == mode]
        called = largest_micro_batch(job_of(tried[0] | {"accumulation": 2}), SINGLE, found["memory_bytes"])
        ran = max((row["micro_batch"] for row in tried if row["ran"]), default=0)
        failed = min((row["micro_batch"] for row in tried if not row["ran"]), default=None)
        rows.append(
            tried[0]
            | {
                "called": called,
                "ran_at": ran,
                "failed_at": failed,
                "runs": True if called <= ran else False if failed is not None and called >= failed else None,
                "quarter_more": (more := math.ceil(QUARTER_MORE * called)),
                "quarter_fails": failed is not None and more >= failed,
            }
        )
    return rows


def times(found: Row) -> Iterator[tuple[Row, dict[str, Prediction]]]:
    """Each timed row with its predictions, calibrated by the median and by the worst step of one row of its mode."""
    node = Node.of_device(found["device"])
    if node is None:
        return
    for row in found["time"]:
        known = [
            one
            for one in found["time"]
            if one["calibrates"] and all(one[key] == row[key] for key in MODE if key != "length")
        ]
        yield (
            row,
            {
                which: predict(job_of(row), SINGLE, node, [measurement(one, found, one[which]) for one in known])
                for which in ("median_seconds", "worst_seconds")
            },
        )


def measurement(row: Row, found: Row, seconds: float) -> Measurement:
    model = MODELS[row["model"]]
    return Measurement(
        device=found["device"],
        gpus=1,
        model=model.name,
        decoder=decoder_fields(model),
        sequence_length=row["length"],
        micro_batch=row["micro_batch"],
        accumulation=1,
        preset="single",
        precision=row["precision"],
        path=row["path"],
        checkpointing=row["checkpointing"],
        step_seconds=seconds,
        peak_bytes=None,
        date="",
        torch=found["torch"],
    )


def report(found: Row) -> str:
    sections = [
        _memory_lines(found),
        _largest_lines(found) if found["largest"] else [],
        _time_lines(found),
        _uncalibrated_lines(found),
        _attention_lines(found) if found.get("attention") else [],
    ]
    left_out = "; ".join(found["left_out"]) or "nothing"
    return "\n".join(
        [
            f"# The planner beside {found['device']}, torch {found['torch']}{', ' + found['visit'] if 'visit' in found else ''}",
            *(line for lines in sections if lines for line in ["", *lines]),
            "",
            f"Left out: {left_out}.",
            "",
        ]
    )


def _memory_lines(found: Row) -> list[str]:
    lines = [
        "Peak memory of one step. `outside` is what is taken beside torch's allocator: by CUDA itself, and by a probe that compiled meanwhile.",
        "",
        "| model | length | micro-batch | accumulation | predicted GiB | allocated GiB | error | reserved GiB | outside GiB |",
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for row in memory_rows(found):
        error = memory_error(row)
        predicted = rank_memory(job_of(row), SINGLE).allocated / GIB
        cells = (
            [
                f"{row['allocated'] / GIB:.2f}",
                f"{error:+.1%}",
                f"{row['reserved'] / GIB:.2f}",
                f"{row['outside'] / GIB:.2f}",
            ]
            if error is not None
            else [row["reason"] or "not on this device", "", "", ""]
        )
        lines.append(
            f"| {mode_of(row)} | {row['length']} | {row['micro_batch']} | {row['accumulation']} | {predicted:.2f} | {' | '.join(cells)} |"
        )
    return lines


def _largest_lines(found: Row) -> list[str]:
    lines = [
        f"The largest micro-batch that is called fitting into {found['memory_bytes'] / GIB:.1f} GiB, two micro-batches a step, and the attempts,",
        "each three steps in a fresh process. It runs where that or a larger one ran; a quarter more does not where that or a smaller one failed.",
        "",
        "| model | length | called fitting | runs | a quarter more | fails | largest that ran | smallest that failed |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    words = {True: "yes", False: "no", None: "not tried"}
    for row in largest(found):
        lines.append(
            f"| {mode_of(row)} | {row['length']} | {row['called']} | {words[row['runs']]} | {row['quarter_more']} | {'yes' if row['quarter_fails'] else 'not shown'} | {row['ran_at']} | {row['failed_at']} |"
        )
    lines += [
        "",
        "| attempt | micro-batch | why | ran | predicted GiB | allocated GiB | reserved GiB | outside GiB | allocator's retries |",
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for row in found["largest"]:
        held = [f"{row[key] / GIB:.2f}" if row[key] is not None else "" for key in ("allocated", "reserved", "outside")]
        lines.append(
            f"| {mode_of(row)} | {row['micro_batch']} | {row['why']} | {words[row['ran']]} | {rank_memory(job_of(row | {'accumulation': 2}), SINGLE).allocated / GIB:.2f} | {' | '.join(held)} | {row['retries']} |"
        )
    return lines


def _time_lines(found: Row) -> list[str]:
    lines = [
        "Step time in ms, calibrated by one row of each mode: by its median where medians are compared, by its worst step where worst are.",
        "",
        "| model | length | micro-batch | predicted | median | error | predicted | worst of 10-19 | error | prediction |",
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for row, predictions in times(found):
        cells = []
        for which, prediction in predictions.items():
            error = prediction.seconds / row[which] - 1
            cells += [f"{prediction.seconds * 1e3:.1f}", f"{row[which] * 1e3:.1f}", f"{error:+.1%}"]
        source = predictions["median_seconds"].source
        lines.append(f"| {mode_of(row)} | {row['length']} | {row['micro_batch']} | {' | '.join(cells)} | {source} |")
    return lines


def _uncalibrated_lines(found: Row) -> list[str]:
    node = Node.of_device(found["device"])
    if node is None:
        return []
    lines = [
        "Step time in ms by formulas only, without any measurement.",
        "",
        "| model | length | micro-batch | predicted | median | error |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for row in found["time"]:
        seconds = predict(job_of(row), SINGLE, node, []).seconds
        error = seconds / row["median_seconds"] - 1
        graphs = ", graphs" if row.get("graphs") else ""
        lines.append(
            f"| {mode_of(row)}{graphs} | {row['length']} | {row['micro_batch']} | {seconds * 1e3:.1f} | {row['median_seconds'] * 1e3:.1f} | {error:+.1%} |"
        )
    return lines


def _attention_lines(found: Row) -> list[str]:
    gpu = find_gpu(found["device"])
    peak = gpu.peak_flops if gpu else None
    lines = [
        "Attention alone, forward and backward, on the causal half: seconds, and its FLOPs as a share of the dense bf16 peak.",
        "",
        "| heads x size | kernel | length | ms | share of peak |",
        "| --- | --- | --- | --- | --- |",
    ]
    for row in found["attention"]:
        share = f"{row['flops_per_s'] / peak:.1%}" if peak and "flops_per_s" in row else row.get("reason", "")
        took = f"{row['seconds'] * 1e3:.2f}" if "seconds" in row else ""
        lines.append(
            f"| {row['heads']}/{row['groups']} x {row['head']} | {row['kernel']} | {row['length']} | {took} | {share} |"
        )
    return lines


def other_steps() -> list[Row]:
    """Return the steps that other benchmarks measured, with errors of the predicted time and peak."""
    node = Node.of_device("NVIDIA H200")
    assert node is not None
    rows = []
    steps = list(csv.DictReader((HERE / "h200_steps.csv").read_text().splitlines()))
    configs = {words: compose(words.split()).config for words in {row["settings"] for row in steps}}
    for row in steps:
        config = configs[row["settings"]]
        assert isinstance(config.model, DecoderConfig)
        micro_batch = int(row["micro_batch"])
        length = config.trainer.sequence_length
        job = TrainingJob(
            replace(config.model, max_length=max(length, config.model.max_length)),
            length,
            micro_batch,
            int(row["batch_tokens"]) // (micro_batch * length),
            compiled=row["path"] == "compiled",
            fused=row["path"] in ("fused", "graphs"),
            graphs=row["path"] == "graphs",
            optimizer=update_facts(config),
        )
        seconds = step_time(job, SINGLE, node).seconds
        measured = int(row["batch_tokens"]) / float(row["tokens_per_s"])
        peak = float(row["peak_gb"]) * 1e9 if row["peak_gb"] else None
        rows.append(
            row
            | {
                "seconds": seconds,
                "measured_seconds": measured,
                "time_error": seconds / measured - 1,
                "memory_error": None if peak is None else rank_memory(job, SINGLE).allocated / peak - 1,
                "fitted": row["settings"].startswith("model=gpt2-124m"),
            }
        )
    return rows


def _other_steps_lines() -> list[str]:
    rows = other_steps()
    lines = [
        "# Steps that other benchmarks measured on an H200, by formulas only",
        "",
        f"Of GPT-2 124M, on which the speed of tuned products is fitted: {_summary(rows, fitted=True)}.",
        f"Of the other models: {_summary(rows, fitted=False)}.",
        "",
        "| log | settings | path | micro-batch | tokens a step | predicted ms | measured ms | error | peak memory, error |",
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for row in rows:
        memory = "" if row["memory_error"] is None else f"{row['memory_error']:+.1%}"
        lines.append(
            f"| {row['log']} | {row['settings']} | {row['path']} | {row['micro_batch']} | {row['batch_tokens']} | "
            f"{row['seconds'] * 1e3:.1f} | {row['measured_seconds'] * 1e3:.1f} | {row['time_error']:+.1%} | {memory} |"
        )
    return [*lines, ""]


def _summary(rows: Sequence[Row], *, fitted: bool) -> str:
    errors = [row["time_error"] for row in rows if row["fitted"] == fitted]
    sizes = [abs(error) for error in errors]
    return (
        f"{len(errors)} steps, median error {statistics.median(sizes):.1%}, largest {max(sizes):.1%}, "
        f"bias {statistics.median(errors):+.1%}"
    )


if __name__ == "__main__":
    text = "\n".join(report(json.loads((HERE / visit).read_text())) for visit in VISITS if (HERE / visit).exists())
    text += "\n".join(["", *_other_steps_lines()])
    print(text)
    (HERE / "h200.md").write_text(text)
