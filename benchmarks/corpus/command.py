"""Runs `skytrain prepare` with all rules for these benchmarks, and measures the CPU time of all its processes."""

from __future__ import annotations

import ctypes
import os
import resource
import sys
from pathlib import Path

SUBREAPER = 36  # Linux: processes whose parent has ended become ours, so that none escapes the count


def prepare_command(name: str, source: Path, store: Path, workers: int) -> list[str]:
    """Rules for the web, exact and near de-duplication, GPT-2 tokens: JSON lines with ids to shards."""
    return [
        str(Path(sys.executable).parent / "skytrain"), "prepare", "data=jsonl", f"data.name={name}",
        f"data.source.paths={source}", "data.source.id_key=id", "data/cleaning=web", "data.near_dedup.enabled=true",
        f"data.workers={workers}", "tokenizer=gpt2", f"store.root={store}",
    ]  # fmt: skip


def adopt_orphans() -> None:
    ctypes.CDLL(None).prctl(SUBREAPER, 1, 0, 0, 0)


def children_cpu() -> float:
    """CPU-seconds of every process that was started from here, when the last of them has ended."""
    while True:
        try:
            os.wait()
        except ChildProcessError:
            break
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime
