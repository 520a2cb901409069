"""Inspects a prepared split: length statistics, sample documents and hash verification."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from ..storage import AGAIN, NotFound, Store, damaged, read_numbers
from .manifest import Manifest, Shard
from .order import permutation
from .shards import HEADER_BYTES
from .tokenizers import Tokenizer

READ_BYTES = 16 << 20
SAMPLE_TOKENS = 200


@dataclass(frozen=True)
class LengthStatistics:
    """Document lengths in tokens, including the end-of-text token."""

    mean: float
    shortest: int
    median: int
    p95: int
    longest: int


@dataclass(frozen=True)
class Sample:
    document: int  # index within the split
    tokens: int
    text: str  # the beginning of its text
    # With a loss mask: the beginning in runs of tokens, each with whether the loss is computed on it.
    runs: tuple[tuple[bool, str], ...] | None = None


def document_lengths(store: Store, prefix: str, manifest: Manifest) -> np.ndarray:
    lengths = [np.diff(_ends(store, prefix, shard), prepend=0) for shard in manifest.shards]
    return np.concatenate(lengths) if lengths else np.zeros(0, dtype=np.int64)


def length_statistics(lengths: np.ndarray) -> LengthStatistics:
    median, p95 = np.percentile(lengths, [50, 95], method="nearest")
    return LengthStatistics(
        mean=float(lengths.mean()),
        shortest=int(lengths.min()),
        median=int(median),
        p95=int(p95),
        longest=int(lengths.max()),
    )


def sample_documents(
    store: Store, prefix: str, manifest: Manifest, tokenizer: Tokenizer, count: int, seed: int
) -> list[Sample]:
    """Return documents sampled from the whole split, deterministic in the seed. Only their own bytes are read.

    Of each document the beginning is shown; of one with a loss mask, all of it.
    """
    if not manifest.documents:
        return []
    bounds = np.concatenate([[0], np.cumsum([shard.documents for shard in manifest.shards])])
    chosen = permutation(f"inspect/{seed}", manifest.documents)(np.arange(min(count, manifest.documents)))
    samples = []
    for document in chosen.tolist():
        shard = int(np.searchsorted(bounds, document, side="right")) - 1
        name = manifest.shards[shard].name
        ends = _ends(store, prefix, manifest.shards[shard])
        number = document - int(bounds[shard])
        start = int(ends[number - 1]) if number else 0
        end = int(ends[number])
        item = np.dtype(manifest.dtype).newbyteorder("<")
        shown = end - start if manifest.masked else min(end - start, SAMPLE_TOKENS + 1)
        data = store.read_range(f"{prefix}/{name}.bin", HEADER_BYTES + start * item.itemsize, shown * item.itemsize)
        ids = np.frombuffer(data, item)[0 if manifest.masked else 1 :]  # without the leading end-of-text token
        runs = _runs(store, f"{prefix}/{name}.mask", start, ids, tokenizer) if manifest.masked else None
        samples.append(Sample(document, end - start, tokenizer.decode(ids.astype(np.int64)), runs))
    return samples


def _runs(store: Store, key: str, start: int, ids: np.ndarray, tokenizer: Tokenizer) -> tuple[tuple[bool, str], ...]:
    first = start // 8
    data = store.read_range(key, first, -(-(start + len(ids)) // 8) - first)
    trained = np.unpackbits(np.frombuffer(data, np.uint8), bitorder="little")[start - 8 * first :][: len(ids)] > 0
    edges = [0, *(np.flatnonzero(np.diff(trained)) + 1).tolist(), len(ids)]
    return tuple((bool(trained[a]), tokenizer.decode(ids[a:b].astype(np.int64))) for a, b in pairwise(edges))


def check_hashes(
    store: Store, prefix: str, manifest: Manifest, progress: Callable[[float, float], None] | None = None
) -> list[str]:
    """Read every byte of the split and report each file that does not match the manifest."""
    files = [file for shard in manifest.shards for file in _files(prefix, shard)]
    problems = []
    done = 0
    total = sum(size for _, size, _ in files)
    for key, size, sha256 in files:
        problem = _check_object(store, key, size, sha256)
        if problem:
            problems.append(f"{store.url(key)} {problem}")
        done += size
        if progress:
            progress(done, total)
    return problems


def _files(prefix: str, shard: Shard) -> list[tuple[str, int, str]]:
    """Return the key, size and sha256 of each file of a shard."""
    name = f"{prefix}/{shard.name}"
    files = [(f"{name}.bin", shard.bytes, shard.sha256), (f"{name}.idx", 8 * shard.documents, shard.index_sha256)]
    if shard.mask_sha256 is not None and shard.mask_bytes is not None:
        files.append((f"{name}.mask", shard.mask_bytes, shard.mask_sha256))
    return files


def _check_object(store: Store, key: str, size: int, sha256: str) -> str | None:
    digest = hashlib.sha256()
    read = 0
    try:
        while chunk := store.read_range(key, read, READ_BYTES):
            digest.update(chunk)
            read += len(chunk)
    except NotFound:
        return "is missing"
    if read != size:
        return f"has {read:,} bytes, the manifest says {size:,}"
    return None if digest.hexdigest() == sha256 else "was altered: its sha256 is not the manifest's"


def _ends(store: Store, prefix: str, shard: Shard) -> np.ndarray:
    """Return where the documents of a shard end, after a check that they are so many and that none ends before it begins."""
    key = f"{prefix}/{shard.name}.idx"
    ends = read_numbers(store, key, "<u8").astype(np.int64)
    if len(ends) != shard.documents or (np.diff(ends, prepend=0) < 0).any():
        raise damaged(store.url(key), f"it does not say where {shard.documents:,} documents end", AGAIN)
    return ends
