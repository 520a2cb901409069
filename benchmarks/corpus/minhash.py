"""MinHash: signatures per CPU-second against rensa, and the quality of near-duplicates on planted edits.

    python benchmarks/corpus/minhash.py FOLDER [PEERS_PYTHON] | tee benchmarks/corpus/minhash.log

FOLDER holds debian.jsonl (debian_text.py makes it); PEERS_PYTHON is a Python with peers/peers.txt installed.
"""

from __future__ import annotations

import hashlib
import json
import platform
import random
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from pathlib import Path

import numpy as np

from skytrain.corpus.dedup import EXACT, FACTS, KEPT, Duplicates, find_duplicates
from skytrain.corpus.minhash import signatures
from skytrain.corpus.rules.reference import jaccard, shingles

HERE = Path(__file__).parent
PLANTED = 3000
SEEDS = (0, 1, 2)  # the default of min_similarity was chosen on the first; the others are samples that it has not seen


def main(folder: Path, peers: str | None) -> None:
    print(f"{platform.processor() or platform.machine()}, Python {platform.python_version()}, numpy {np.__version__}")
    with (folder / "debian.jsonl").open() as lines:
        texts = [json.loads(line)["text"] for line in lines]
    size = sum(len(text.encode()) for text in texts) / 1e6
    print(f"{len(texts)} documents, {size:.1f} MB")
    speed(texts, size)
    if peers:
        found = json.loads(
            subprocess.run(
                [peers, str(HERE / "peers/peer_rensa.py"), str(folder / "debian.jsonl")],
                capture_output=True,
                text=True,
                check=True,
            ).stdout
        )
        print(
            f"rensa           {size / found['cpu_seconds']:7.1f} MB per CPU-second ({size / found['cpu_seconds_without_shingling']:.1f} with the shingles given)"
        )
    for seed in SEEDS:
        quality(texts, seed)


def speed(texts: list[str], size: float) -> None:
    signatures(texts[:20])
    signatures(["a", "é"])
    for _ in range(3):
        start = time.process_time()
        for i in range(0, len(texts), 500):
            signatures(texts[i : i + 500])
        print(f"skytrain        {size / (time.process_time() - start):7.1f} MB per CPU-second")


def quality(texts: list[str], seed: int) -> None:
    """Copies with 0 to 10% of their words changed; truth is the exact Jaccard similarity of pairs from 37 bands of 3."""
    generator = random.Random(seed)
    sample = generator.sample(texts, min(17_000, len(texts)))
    planted = []
    for text in generator.sample(sample, PLANTED):
        words = text.split()
        for place in generator.sample(range(len(words)), int(len(words) * generator.uniform(0, 0.1))):
            words[place] = f"edit{generator.randrange(10**6)}"
        planted.append(" ".join(words))
    everything = sample + planted
    generator.shuffle(everything)
    started = time.process_time()
    rows = np.concatenate([signatures(everything[i : i + 500]) for i in range(0, len(everything), 500)])
    facts = np.zeros(len(everything), FACTS)
    facts["text"] = [
        np.frombuffer(hashlib.blake2b(text.encode(), digest_size=16).digest(), np.uint64) for text in everything
    ]
    facts["id"] = np.arange(len(everything))
    search(facts, rows, 0.77)
    print(
        f"sample {seed}: {time.process_time() - started:.2f} CPU-seconds for {len(everything)} documents, signatures to clusters"
    )
    pairs = wide_net(rows)
    sets = [shingles(text) for text in everything]
    exact = {pair: jaccard(sets[pair[0]], sets[pair[1]]) for pair in pairs}
    truth = [pair for pair, value in exact.items() if value >= 0.8]
    best: dict[int, float] = defaultdict(float)
    for (a, b), value in exact.items():
        best[a], best[b] = max(best[a], value), max(best[b], value)
    for limit in (0.0, 0.75, 0.76, 0.77, 0.78, 0.80):
        found = search(facts, rows, limit)
        # Exact copies are set aside before clusters are made; they count with the document they equal.
        cluster = found.cluster[np.where(found.fate == EXACT, found.twin, np.arange(len(everything)))]
        recalled = np.mean([cluster[a] == cluster[b] for a, b in truth])
        removed = np.flatnonzero(found.fate != KEPT).tolist()
        precise = [np.mean([best[i] >= jaccard_limit for i in removed]) for jaccard_limit in (0.8, 0.7)]
        print(
            f"  min_similarity={limit:.2f}: recall {recalled:.4f} of {len(truth)} pairs of Jaccard >= 0.8; of {len(removed)} removed documents "
            f"{precise[0]:.4f} have a twin of Jaccard >= 0.8, {precise[1]:.4f} of >= 0.7"
        )


def search(facts: np.ndarray, rows: np.ndarray, min_similarity: float) -> Duplicates:
    with tempfile.TemporaryDirectory() as scratch:
        path = Path(scratch) / "signatures"
        rows.tofile(path)
        return find_duplicates(
            [facts], len(facts), Path(scratch), exact=True, signatures=path, min_similarity=min_similarity
        )


def wide_net(rows: np.ndarray) -> set[tuple[int, int]]:
    pairs: set[tuple[int, int]] = set()
    for band in range(37):
        buckets: dict[bytes, list[int]] = defaultdict(list)
        for number, row in enumerate(rows[:, 3 * band : 3 * band + 3]):
            buckets[row.tobytes()].append(number)
        for members in buckets.values():
            if len(members) <= 40:
                pairs.update((a, b) for i, a in enumerate(members) for b in members[i + 1 :])
    return pairs


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else HERE / "data"), sys.argv[2] if len(sys.argv) > 2 else None)
