"""GPT-2 tokenizing: MB per CPU-second against tiktoken, cold, warm and on words never seen, and whether ids are equal.

python benchmarks/corpus/tokenizing.py FOLDER | tee benchmarks/corpus/tokenizing.log

Skytrain's tokenizer remembers the words that it has seen, so speed depends on what came before: "cold" is the first
text of a new process, "first pass" all of the text in order, "again" the same text a second time, "new words" random
letters of which no word occurs twice. Both take turns, batch by batch, in one process with one thread each.
"""

from __future__ import annotations

import json
import os
import platform
import random
import string
import sys
import time
from importlib import metadata
from pathlib import Path

os.environ["RAYON_NUM_THREADS"] = "1"

import numpy as np

from skytrain.tokens.byte_level import gpt2
from skytrain.tokens.encoders import tiktoken_encoder

HERE = Path(__file__).parent
BATCH = 200
COLD_BYTES = 2_000_000
AGAIN_BYTES = 10_000_000
NEW_WORDS = 300_000


class Comparison:
    """Both tokenizers on the same batches; the order within a pair alternates."""

    def __init__(self) -> None:
        start = time.process_time()
        self._ours = gpt2()
        self._ours.encode_batch(["x"])
        print(
            f"start-up    {time.process_time() - start:6.2f} CPU-seconds, once a process: ids are compared with tiktoken's"
        )
        self._theirs = tiktoken_encoder(self._ours._bytes[:-1])
        self._theirs(["x"])
        self.tokens = self.different = self._pairs = 0

    def measure(self, name: str, texts: list[str]) -> None:
        spent = {"skytrain": 0.0, "tiktoken": 0.0}
        for i in range(0, len(texts), BATCH):
            batch = texts[i : i + BATCH]
            found = {}
            encoders = [("skytrain", self._ours.encode_batch), ("tiktoken", self._theirs)]
            self._pairs += 1
            for who, encode in encoders if self._pairs % 2 else reversed(encoders):
                start = time.process_time()
                found[who] = encode(batch)
                spent[who] += time.process_time() - start
            self.tokens += sum(map(len, found["tiktoken"]))
            pairs = zip(found["skytrain"], found["tiktoken"], strict=True)
            self.different += sum(not np.array_equal(a, b) for a, b in pairs)
        size = sum(len(text.encode()) for text in texts) / 1e6
        ratio = spent["tiktoken"] / spent["skytrain"]
        speeds = ", ".join(f"{who} {size / seconds:6.1f}" for who, seconds in spent.items())
        print(f"{name:<11} {size:6.1f} MB: {speeds} MB per CPU-second, ratio {ratio:4.1f}", flush=True)


def first_bytes(texts: list[str], size: int) -> list[str]:
    ends = np.cumsum([len(text.encode()) for text in texts])
    return texts[: int(np.searchsorted(ends, size)) + 1]


def new_words() -> list[str]:
    generator = random.Random(0)
    words = {"".join(generator.choices(string.ascii_lowercase, k=generator.randint(4, 11))) for _ in range(NEW_WORDS)}
    ordered = sorted(words, key=lambda word: word[::-1])
    return [" ".join(ordered[i : i + 500]) for i in range(0, len(ordered), 500)]


def main(folder: Path) -> None:
    versions = ", ".join(f"{name} {metadata.version(name)}" for name in ("fastokens", "tiktoken"))
    print(f"{platform.processor() or platform.machine()}, Python {platform.python_version()}, {versions}")
    print(f"load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores that other work shares; CPU-seconds, not wall time")
    with (folder / "debian.jsonl").open() as lines:
        texts = [json.loads(line)["text"] for line in lines]
    random.Random(0).shuffle(texts)  # the file is sorted by package
    comparison = Comparison()
    cold = first_bytes(texts, COLD_BYTES)
    comparison.measure("cold", cold)
    comparison.measure("first pass", texts[len(cold) :])
    comparison.measure("again", first_bytes(texts, AGAIN_BYTES))
    comparison.measure("new words", new_words())
    print(f"{comparison.tokens} tokens, {comparison.different} documents with other ids than tiktoken's")


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else HERE / "data"))
