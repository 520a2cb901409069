"""GPT-2 tokenizing: MB per CPU-second against tiktoken, and whether every id is the same on all of the text.

python benchmarks/corpus/tokenizing.py FOLDER | tee benchmarks/corpus/tokenizing.log
"""

from __future__ import annotations

import json
import os
import platform
import sys
import time
from importlib import metadata
from pathlib import Path

os.environ["RAYON_NUM_THREADS"] = "1"

import numpy as np

from skytrain.tokens.byte_level import gpt2
from skytrain.tokens.encoders import tiktoken_encoder

HERE = Path(__file__).parent
WARM_UP = 200  # documents that are not measured: the fast one fills its cache of words


def main(folder: Path) -> None:
    print(
        f"{platform.processor() or platform.machine()}, Python {platform.python_version()}, fastokens {metadata.version('fastokens')}, tiktoken {metadata.version('tiktoken')}"
    )
    with (folder / "debian.jsonl").open() as lines:
        texts = [json.loads(line)["text"] for line in lines]
    batches = [texts[i : i + 200] for i in range(WARM_UP, len(texts), 200)]
    size = sum(len(text.encode()) for batch in batches for text in batch) / 1e6
    ours = gpt2()
    reference = tiktoken_encoder(ours._bytes[:-1])
    ours.encode_batch(texts[:WARM_UP])
    reference(texts[:WARM_UP])
    spent = {"skytrain": 0.0, "tiktoken": 0.0}
    tokens = different = 0
    for batch in batches:
        start = time.process_time()
        fast = ours.encode_batch(batch)
        spent["skytrain"] += time.process_time() - start
        start = time.process_time()
        plain = reference(batch)
        spent["tiktoken"] += time.process_time() - start
        tokens += sum(map(len, plain))
        different += sum(not np.array_equal(a, b) for a, b in zip(fast, plain, strict=True))
    print(f"{size:.1f} MB, {tokens} tokens, {different} documents with other ids than tiktoken's")
    for name, seconds in spent.items():
        print(f"{name:<10} {size / seconds:7.1f} MB per CPU-second")
    print(f"ratio      {spent['tiktoken'] / spent['skytrain']:7.1f}")


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else HERE / "data"))
