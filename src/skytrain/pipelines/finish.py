"""Finish: a trained run in; its scores on downstream tasks, its export and its page out. Each part is done once.

runs/<run>/finish/step-<step>/scores/<task>.json    what `skytrain evaluate` measured
runs/<run>/finish/step-<step>/export/               the folder that `skytrain export --to hf` writes
runs/<run>/finish/step-<step>/export.json           its files with their hashes, when all of them are there
runs/<run>/finish/step-<step>/report.json           when the page is written
runs/<run>/report.html                              the page
"""

from __future__ import annotations

import json
import tempfile
from dataclasses import dataclass
from pathlib import Path

from ..checkpoints import choose_checkpoint
from ..config import Config, find_tasks, finish_settings
from ..runs import Reporter, finish_folder
from ..storage import Store, open_store
from .evaluate import TasksRequest, evaluate_tasks, results_as_json
from .export import ExportRequest, export
from .report import report


@dataclass(frozen=True)
class FinishedRun:
    """The URLs of what was made of a trained run."""

    label: str
    scores: str
    export: str
    page: str


def finish(config: Config, run: str, reporter: Reporter) -> FinishedRun:
    """Evaluate, export and report the newest checkpoint of a run. What an earlier call has done is not done again."""
    store = open_store(config.store)
    record, step = choose_checkpoint(store, run)
    label = f"{record.name}@{step}"
    place = finish_folder(record.name, step)
    for task in find_tasks(finish_settings(config).evaluation):
        key = f"{place}/scores/{task.name}.json"
        if _is_missing(store, key, f"evaluate {label} on {task.name}", reporter):
            _evaluate(finish_settings(config, task.name), store, key, label, reporter)
    if _is_missing(store, f"{place}/export.json", f"export {label}", reporter):
        _export(config, store, place, label, reporter)
    reporter.note(f"report {record.name}")
    page = report(config, record.name)
    store.write(f"{place}/report.json", json.dumps({"page": page.url}).encode())
    return FinishedRun(label, store.url(f"{place}/scores"), store.url(f"{place}/export"), page.url)


def _is_missing(store: Store, key: str, what: str, reporter: Reporter) -> bool:
    done = store.exists(key)
    reporter.note(f"{what}{': done before' if done else ''}")
    return not done


def _evaluate(config: Config, store: Store, key: str, label: str, reporter: Reporter) -> None:
    results = list(evaluate_tasks(config, TasksRequest((label,)), reporter))
    store.write(key, json.dumps(results_as_json(results, []), indent=1, allow_nan=False).encode())


def _export(config: Config, store: Store, place: str, label: str, reporter: Reporter) -> None:
    with tempfile.TemporaryDirectory(prefix="skytrain-export-") as name:
        folder = Path(name) / "model"
        export(config, ExportRequest(source=label, out=folder), reporter)
        files = sorted(path for path in folder.rglob("*") if path.is_file())
        hashes = {}
        for number, path in enumerate(files, 1):
            relative = path.relative_to(folder).as_posix()
            hashes[relative] = store.upload(path, f"{place}/export/{relative}")
            reporter.progress("upload the export", number, len(files), "files")
    store.write(f"{place}/export.json", json.dumps({"sha256": hashes}, indent=1).encode())
