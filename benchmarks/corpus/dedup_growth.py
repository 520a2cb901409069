"""How the search for duplicates scales: random texts of 40 words, a tenth near-copies, exact and near, in one process.

    python benchmarks/corpus/dedup_growth.py [COUNT ...] | tee benchmarks/corpus/dedup_growth.log

This is the only step that sees the whole corpus at once; everything else handles one bounded chunk after the other.
"""

from __future__ import annotations

import json
import platform
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import numpy as np

from skytrain.config import compose
from skytrain.corpus.dedup import FACTS, KEPT, find_duplicates
from skytrain.corpus.minhash import MinHash
from skytrain.corpus.near import NearInputs

CHUNK = 10_000
WORDS = 40


def texts_of(count: int) -> Iterator[list[str]]:
    generator = np.random.default_rng(0)
    for first in range(0, count, CHUNK):
        words = generator.integers(0, 50_000, (min(CHUNK, count - first), WORDS))
        copies = words[9::10]
        copies[:] = words[: len(copies) * 10 : 10]
        copies[:, -1] += 1  # 35 of 37 shingles in common
        yield [" ".join(map(str, row)) for row in words.tolist()]


def chosen_texts(count: int, numbers: np.ndarray) -> Iterator[tuple[np.ndarray, list[str]]]:
    for index, texts in enumerate(texts_of(count)):
        first = index * CHUNK
        mine = numbers[np.searchsorted(numbers, first) : np.searchsorted(numbers, first + len(texts))]
        yield mine, [texts[number - first] for number in mine]


def facts_of(count: int) -> Iterator[np.ndarray]:
    generator = np.random.default_rng(1)
    for first in range(0, count, CHUNK):
        facts = np.zeros(min(CHUNK, count - first), FACTS)
        facts["text"] = generator.integers(0, 2**63, (len(facts), 2))
        facts["id"][:, 0] = np.arange(first, first + len(facts), dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
        yield facts


def one(count: int) -> None:
    minhash = MinHash.of(compose().config.data.near_dedup)
    with tempfile.TemporaryDirectory() as scratch:
        path = Path(scratch) / "signatures"
        with path.open("wb") as file:
            for texts in texts_of(count):
                minhash.signatures(texts).tofile(file)
        near = NearInputs(path, partial(chosen_texts, count), 0.8, minhash)
        start = time.process_time()
        found = find_duplicates(facts_of(count), count, Path(scratch), exact=True, near=near)
        seconds = time.process_time() - start
    print(
        json.dumps(
            {
                "seconds": seconds,
                "peak": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
                "removed": int((found.fate != KEPT).sum()),
            }
        )
    )


def main(counts: list[int]) -> None:
    print(f"{platform.processor() or platform.machine()}, Python {platform.python_version()}")
    before = None
    for count in counts:
        out = subprocess.run(
            [sys.executable, __file__, "--one", str(count)], capture_output=True, text=True, check=True
        ).stdout
        found = json.loads(out)
        line = f"{count:>9} documents: {found['seconds'] / count * 1e6:6.1f} CPU-microseconds a document, peak {found['peak'] / 2**20:6.0f} MiB, {found['removed']} removed"
        if before:
            line += (
                f"; time a document x{found['seconds'] / count / before[0]:.2f}, peak x{found['peak'] / before[1]:.2f}"
            )
        print(line, flush=True)
        before = before or (found["seconds"] / count, found["peak"])


if __name__ == "__main__":
    if sys.argv[1:2] == ["--one"]:
        one(int(sys.argv[2]))
    else:
        main([int(count) for count in sys.argv[1:]] or [100_000, 1_000_000, 5_000_000])
