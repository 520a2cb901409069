"""MinHash: signatures per CPU-second against rensa. `near_quality.py` measures what they find.

    python benchmarks/corpus/minhash.py FOLDER [PEERS_PYTHON] | tee benchmarks/corpus/minhash.log

FOLDER holds debian.jsonl (debian_text.py makes it); PEERS_PYTHON is a Python with peers/peers.txt installed.
"""

from __future__ import annotations

import json
import platform
import subprocess
import sys
import time
from pathlib import Path

import numpy as np

from skytrain.config import compose
from skytrain.corpus.minhash import MinHash

HERE = Path(__file__).parent


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


def speed(texts: list[str], size: float) -> None:
    signatures = MinHash.of(compose().config.data.near_dedup).signatures
    signatures(texts[:20])
    signatures(["a", "é"])
    for _ in range(3):
        start = time.process_time()
        for i in range(0, len(texts), 500):
            signatures(texts[i : i + 500])
        print(f"skytrain        {size / (time.process_time() - start):7.1f} MB per CPU-second")


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else HERE / "data"), sys.argv[2] if len(sys.argv) > 2 else None)
