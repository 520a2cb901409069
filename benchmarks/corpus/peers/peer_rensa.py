"""rensa's signatures of the same shingles, timed in CPU-seconds; run by minhash.py with the peers' Python."""

import json
import re
import sys
import time
from pathlib import Path

from rensa import RMinHash

WORDS = re.compile(r"[^\W_]+")
texts = [json.loads(line)["text"] for line in Path(sys.argv[1]).read_text().split("\n") if line]


def shingles(text: str) -> list[str]:
    words = WORDS.findall(text.lower())
    return [" ".join(words[i : i + 5]) for i in range(max(1, len(words) - 4))]


def signature(grams: list[str]) -> list[int]:
    sketch = RMinHash(num_perm=112, seed=1)
    sketch.update(grams)
    return sketch.digest()


for text in texts[:50]:
    signature(shingles(text))
start = time.process_time()
for text in texts:
    signature(shingles(text))
whole = time.process_time() - start
ready = [shingles(text) for text in texts[: len(texts) // 4]]  # a quarter: the shingles of all of it fill the memory
start = time.process_time()
for grams in ready:
    signature(grams)
alone = time.process_time() - start
share = sum(len(text.encode()) for text in texts[: len(texts) // 4]) / sum(len(text.encode()) for text in texts)
print(json.dumps({"cpu_seconds": whole, "cpu_seconds_without_shingling": alone / share}))
