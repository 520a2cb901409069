"""Real text for the training benchmarks, without a network: sources and documentation of the installed Python packages.

    python benchmarks/training/package_text.py FOLDER [--tokens 45M]

writes FOLDER/train.bin and FOLDER/val.bin: GPT-2 tokens as raw uint16, each document behind an end-of-text token, as
nanoGPT and `loss_per_dollar.py` read them. Each text is taken once; a hash of its bytes decides its place and its split,
so two machines with the same packages write the same files. The text is not part of this repository.
"""

from __future__ import annotations

import argparse
import hashlib
import sysconfig
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from skytrain.config import parse_count
from skytrain.tokens.byte_level import gpt2

SUFFIXES = {".py", ".pyi", ".md", ".rst", ".txt"}
CHARS = range(500, 100_000)  # of a text
VALIDATION_TOKENS = 1_100_000
END_OF_TEXT = 50256
TOGETHER = 256  # texts that are encoded at a time


def texts() -> dict[bytes, Path]:
    """Return the file of each distinct text, by the hash of its bytes."""
    found: dict[bytes, Path] = {}
    for name in ("stdlib", "purelib"):
        for path in Path(sysconfig.get_path(name)).rglob("*"):
            if path.suffix in SUFFIXES and path.is_file() and path.stat().st_size in CHARS:
                found.setdefault(hashlib.sha256(path.read_bytes()).digest(), path)
    return found


def documents() -> Iterator[np.ndarray]:
    """Yield the tokens of each text behind an end of text, in the order of their hashes."""
    tokenizer = gpt2()
    paths = [path for _, path in sorted(texts().items())]
    for start in range(0, len(paths), TOGETHER):
        together = [path.read_text(encoding="utf-8", errors="ignore") for path in paths[start : start + TOGETHER]]
        for ids in tokenizer.encode_batch(together):
            yield np.concatenate(([END_OF_TEXT], ids)).astype(np.uint16)


def write(path: Path, parts: Iterator[np.ndarray], tokens: int) -> None:
    """Write whole documents until the file has `tokens` tokens, or there are no more."""
    kept: list[np.ndarray] = []
    while tokens > 0 and (part := next(parts, None)) is not None:
        kept.append(part)
        tokens -= len(part)
    whole = np.concatenate(kept)
    whole.tofile(path)
    print(f"{path}: {len(kept):,} documents, {len(whole):,} tokens, sha256 {hashlib.sha256(whole).hexdigest()[:16]}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--tokens", type=parse_count, default=45_000_000)
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    parts = documents()
    write(options.folder / "val.bin", parts, VALIDATION_TOKENS)
    write(options.folder / "train.bin", parts, options.tokens)


if __name__ == "__main__":
    main()
