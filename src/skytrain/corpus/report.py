"""The report of a preparation: examples of what each rule removed, and pairs of near-duplicates."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np

from skytrain.config import DataConfig
from skytrain.storage import Store

from .chunks import EXAMPLE_CHARS, EXAMPLES, Chunk, read_documents
from .dedup import EXACT, NEAR, Duplicates
from .documents import Document
from .minhash import similarity

SHOWN_PAIRS = 5

Examples = dict[str, list[dict[str, str]]]  # documents that a rule removed: id and text


def keep_examples(examples: Examples, more: Examples) -> None:
    """Add later examples, up to a few per rule."""
    for rule, found in more.items():
        examples.setdefault(rule, []).extend(found[: EXAMPLES - len(examples.get(rule, []))])


def write_report(
    store: Store, folder: str, data: DataConfig, chunks: list[Chunk], duplicates: Duplicates, examples: Examples
) -> None:
    """Write report.json next to the parts; the same input gives the same bytes."""
    exact, near = np.flatnonzero(duplicates.fate == EXACT), np.flatnonzero(duplicates.fate == NEAR)
    shown = near[np.linspace(0, len(near) - 1, min(SHOWN_PAIRS, len(near))).astype(np.int64)]
    texts = _fetch(store, f"{folder}/clean", chunks, [*exact[:EXAMPLES], *shown, *duplicates.twin[shown]])
    if len(exact):
        examples = {**examples, "exact_dedup": [_shown(texts[int(i)]) for i in exact[:EXAMPLES]]}
    report: dict[str, Any] = {"examples": dict(sorted(examples.items()))}
    if data.near_dedup.enabled:
        report["near_duplicates"] = _near(duplicates, near, shown, texts)
    store.write(f"{folder}/report.json", (json.dumps(report, indent=1, ensure_ascii=False) + "\n").encode())


def _near(duplicates: Duplicates, near: np.ndarray, shown: np.ndarray, texts: dict[int, Document]) -> dict[str, Any]:
    sizes = (
        np.bincount(np.unique(duplicates.cluster[near], return_inverse=True)[1]) + 1
        if len(near)
        else np.empty(0, np.int64)
    )
    histogram = Counter(
        "2" if size == 2 else "3-5" if size <= 5 else "6-20" if size <= 20 else "more than 20"
        for size in sizes.tolist()
    )
    pairs = [(texts[int(i)], texts[int(duplicates.twin[i])]) for i in shown]
    return {
        "clusters": len(sizes),
        "removed": len(near),
        "cluster_sizes": dict(sorted(histogram.items())),
        # Removed documents that are similar to the kept one only through other removed ones.
        "below_min_similarity": duplicates.beyond,
        "examples": [
            {"jaccard": round(similarity(a.text, b.text), 3), "removed": _shown(a), "kept": _shown(b)} for a, b in pairs
        ],
    }


def _shown(document: Document) -> dict[str, str]:
    return {"id": document.id, "text": document.text[:EXAMPLE_CHARS]}


def _fetch(store: Store, folder: str, chunks: list[Chunk], numbers: Sequence[Any]) -> dict[int, Document]:
    wanted = np.unique(np.asarray(numbers, np.int64))
    return {
        int(number): document
        for found, documents in read_documents(store, folder, chunks, wanted)
        for number, document in zip(found, documents, strict=True)
    }
