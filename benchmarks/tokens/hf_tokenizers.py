"""Hugging Face tokenizers: MB per CPU-second against AutoTokenizer in the same run, and whether every id is the same.

One tokenizer of each kind, trained on a part of the text: byte-level BPE as Llama 3's, SentencePiece-style BPE as
Llama 2's, one as Gemma's, and a Unigram model as T5's. The text is Python source and documentation of this
environment, with special tokens spelled in it.

python benchmarks/tokens/hf_tokenizers.py [MB] | tee benchmarks/tokens/hf_tokenizers.log
"""

from __future__ import annotations

import os
import platform
import sys
import tempfile
import time
import warnings
from importlib import metadata
from pathlib import Path

os.environ["RAYON_NUM_THREADS"] = "1"
os.environ["TOKENIZERS_PARALLELISM"] = "true"
sys.path.insert(0, str(Path(__file__).parents[2]))

import numpy as np
from tests.support.hf_tokenizers import KINDS, make_tokenizer_folder
from tests.support.mixed_text import mixed_text
from transformers import AutoTokenizer

from skytrain.tokens import load_tokenizer_folder

BATCH = 100  # documents at a time
WARM_UP = 10  # batches that are not measured: the fast engine fills its cache of words
VOCABULARY = 8000
TRAINING_BYTES = 1_000_000


def main(megabytes: float) -> None:
    versions = ", ".join(f"{name} {metadata.version(name)}" for name in ("fastokens", "tokenizers", "transformers"))
    print(f"{platform.processor() or platform.machine()}, Python {platform.python_version()}, {versions}, one thread")
    texts = mixed_text(int(megabytes * 1e6))
    learned = mixed_text(TRAINING_BYTES, spell_special=False)
    with tempfile.TemporaryDirectory() as scratch:
        for kind in KINDS:
            folder = make_tokenizer_folder(kind, Path(scratch) / kind, learned, VOCABULARY)
            measure(kind, folder, texts)


def measure(kind: str, folder: Path, texts: list[str]) -> None:
    theirs = AutoTokenizer.from_pretrained(folder)
    ours = load_tokenizer_folder(folder)
    with warnings.catch_warnings(record=True) as fallback:
        warnings.simplefilter("always")
        ours.encode_batch(["compares the engines"])
    batches = [texts[i : i + BATCH] for i in range(0, len(texts), BATCH)]
    for batch in batches[:WARM_UP]:
        ours.encode_batch(batch)
        theirs(batch)
    spent = {"skytrain": 0.0, "AutoTokenizer": 0.0}
    size = sum(len(text.encode()) for batch in batches[WARM_UP:] for text in batch) / 1e6
    tokens = different = spelled = 0
    for batch in batches[WARM_UP:]:
        start = time.process_time()
        found = ours.encode_batch(batch)
        spent["skytrain"] += time.process_time() - start
        start = time.process_time()
        expected = theirs(batch, add_special_tokens=False, split_special_tokens=True)["input_ids"]
        spent["AutoTokenizer"] += time.process_time() - start
        tokens += sum(map(len, expected))
        wrong = [text for text, a, b in zip(batch, found, expected, strict=True) if not np.array_equal(a, b)]
        different += len(wrong)
        # A Unigram model of AutoTokenizer's finds special tokens in its own vocabulary, even when told to split them.
        spelled += sum(any(token in text for token in theirs.all_special_tokens) for text in wrong)
    engine = "tokenizers" if fallback else "fastokens"
    rates = ", ".join(f"{name} {size / seconds:.2f}" for name, seconds in spent.items())
    print(
        f"{kind}: {size:.1f} MB, {tokens} tokens, {different} documents with other ids ({spelled} spell a special token); by {engine}"
    )
    print(f"  MB per CPU-second: {rates}; ratio {spent['AutoTokenizer'] / spent['skytrain']:.1f}", flush=True)


if __name__ == "__main__":
    main(float(sys.argv[1]) if len(sys.argv) > 1 else 20)
