"""Writes stores of made-up runs, through Skytrain's own writers, for measurements of pages."""

from __future__ import annotations

import dataclasses
import functools
import json
import math
import random
from pathlib import Path
from typing import Any

from skytrain.config import Config, compose
from skytrain.runs import (
    Cause,
    Lines,
    MetricsWriter,
    RunRecord,
    claim_attempt,
    create_run,
    new_record,
    plain,
    record_resume,
    write_outcome,
)
from skytrain.storage import Store, open_store

BATCH_TOKENS = 524_288
METRICS = 20  # in each record, "extra" ones included


def configuration(root: Path) -> Config:
    words = ["model=gpt2-124m", "data=synthetic", f"trainer.batch_tokens={BATCH_TOKENS}", "budget.usd=150"]
    return compose([*words, "trainer.steps=1000", f"store.root='{root}'"]).config


def write_run(config: Config, name: str, *, steps: int, attempts: int = 2, every: int = 1, seed: int = 0) -> None:
    """Write a run that was interrupted `attempts - 1` times and is done."""
    store = open_store(config.store)
    chance = random.Random(seed)
    config = dataclasses.replace(config, trainer=dataclasses.replace(config.trainer, steps=steps))
    record = dataclasses.replace(_record_of(config), name=name)
    create_run(store, record)
    floor = 3.0 + chance.random() / 3
    for attempt in range(attempts):
        first, last = steps * attempt // attempts, steps * (attempt + 1) // attempts
        claim_attempt(store, name, mesh="dp=8", world_size=8, ranks_per_node=8)
        record_resume(store, name, attempt, first)
        metrics = MetricsWriter(store, name, attempt)
        for step in range(first + every, last + 1, every):
            metrics.write(step, _record(step, steps, floor, chance))
            if step % max(every, steps // 20 // every * every or every) == 0:
                metrics.write(step, _evaluations(step, steps, floor, chance))
        metrics.lines.flush()
        _spend(store, name, attempt, usd=140 * last / steps)
        end = ("done", Cause("done")) if attempt == attempts - 1 else ("interrupted", Cause("spot notice"))
        write_outcome(store, name, attempt, end[0], last, end[1])


@functools.cache
def _template(root: str) -> RunRecord:
    """Return a record once: the revision of the code, which is part of it, costs two calls of git."""
    facts: dict[str, Any] = {"data": {"data/v1": "0" * 64}, "tokenizer_id": "gpt2", "parameters": 124_000_000}
    return new_record(configuration(Path(root)), name="template", hardware={}, **facts)


def _record_of(config: Config) -> RunRecord:
    return dataclasses.replace(_template(config.store.root), config=plain(config))


def _record(step: int, steps: int, floor: float, chance: random.Random) -> dict[str, float]:
    loss = floor + 7.8 * math.exp(-step / steps * 30) + 0.5 * (1 - step / steps) + chance.gauss(0, 0.04)
    record = {
        "train/loss": loss,
        "train/lr": 6e-4 * (1 - step / steps),
        "train/grad_norm": abs(chance.gauss(0.6, 0.1)) + (20 if chance.random() < 1e-4 else 0),
        "perf/step_ms": 900 + chance.random() * 20,
        "perf/tokens_per_s": BATCH_TOKENS / 0.91,
        "perf/memory_gb": 31.5,
        "perf/mfu": 0.42 + chance.gauss(0, 0.005),
        "cost/usd": 140 * step / steps,
        "cost/projected_usd": 140.0,
    }
    return record | {f"extra/{number}": chance.gauss(number, 1) for number in range(METRICS - len(record))}


def _evaluations(step: int, steps: int, floor: float, chance: random.Random) -> dict[str, float]:
    accuracy = 0.25 + 0.08 * step / steps + chance.gauss(0, 0.004)
    task = {"harness_acc_norm": accuracy, "harness_acc_norm_stderr": 0.0045, "chance": 0.25, "items": 10_042.0}
    loss = floor + 0.1 + 0.5 * (1 - step / steps)
    return {"val/loss": loss} | {f"eval/hellaswag/{name}": value for name, value in task.items()}


def _spend(store: Store, name: str, attempt: int, usd: float) -> None:
    spend = Lines(store, f"runs/{name}/attempts/{attempt}/spend/")
    count = {"usd": usd, "seconds": 3600.0 * (attempt + 1), "boot": "b", "boot_seconds": 1.0}
    spend.write({"at": "2026-01-01T00:00:00+00:00", "usd": usd, "machines": {"i-0123": count}})
    spend.flush()


def spread_attempts(root: Path, name: str, begin: float) -> None:
    """Give the attempts of a run, which were written within a second, hours of their own."""
    from datetime import UTC, datetime, timedelta

    at = datetime.fromtimestamp(begin, UTC)
    for folder in sorted((root / "runs" / name / "attempts").iterdir(), key=lambda path: int(path.name)):
        end = at + timedelta(hours=2.4)
        for file, key, value in (("attempt.json", "started_at", at), ("outcome.json", "ended_at", end)):
            fields = json.loads((folder / file).read_text())
            (folder / file).write_text(json.dumps(fields | {key: value.isoformat(timespec="seconds")}))
        at = end + timedelta(minutes=25)
