"""The report of a preparation: examples of what each rule removed, and pairs of near-duplicates."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from ..config import DataConfig
from ..storage import Store
from .chunks import EXAMPLE_CHARS, EXAMPLES, Chunk, read_documents
from .dedup import EXACT, NEAR, SAME_ID, Duplicates
from .documents import Document
from .minhash import MinHash

SHOWN_PAIRS = 5

Examples = dict[str, list[dict[str, str]]]  # documents that a rule removed: id and text


def keep_examples(examples: Examples, more: Examples) -> None:
    """Add examples from a later chunk, up to EXAMPLES per rule."""
    for rule, removed in more.items():
        examples.setdefault(rule, []).extend(removed[: EXAMPLES - len(examples.get(rule, []))])


class DuplicateSummary(NamedTuple):
    """The duplicates of a corpus as the report describes them. Documents are given by their number."""

    same_id: int  # how many were removed for each reason
    exact: int
    near: int
    first_same_id: list[int]
    first_exact: list[int]
    shown_near: list[tuple[int, int]]  # some near-duplicates, with the documents that were kept
    clusters: int
    cluster_sizes: dict[str, int]
    beyond: int


def summarize(duplicates: Duplicates) -> DuplicateSummary:
    same_id, exact, near = (np.flatnonzero(duplicates.fate == fate) for fate in (SAME_ID, EXACT, NEAR))
    shown = near[shown_places(len(near))]
    sizes = (
        np.bincount(np.unique(duplicates.cluster[near], return_inverse=True)[1]) + 1
        if len(near)
        else np.empty(0, np.int64)
    )
    return DuplicateSummary(
        same_id=len(same_id),
        exact=len(exact),
        near=len(near),
        first_same_id=same_id[:EXAMPLES].tolist(),
        first_exact=exact[:EXAMPLES].tolist(),
        shown_near=list(zip(shown.tolist(), duplicates.twin[shown].tolist(), strict=True)),
        clusters=len(sizes),
        cluster_sizes=size_histogram(sizes),
        beyond=duplicates.beyond,
    )


def shown_places(near: int) -> np.ndarray:
    """Return the indices of the near-duplicates to show, spread evenly over all of them."""
    return np.linspace(0, near - 1, min(SHOWN_PAIRS, near)).astype(np.int64)


def size_histogram(sizes: np.ndarray) -> dict[str, int]:
    """Count clusters by their number of documents."""
    return dict(
        Counter(
            "2" if size == 2 else "3-5" if size <= 5 else "6-20" if size <= 20 else "more than 20"
            for size in sizes.tolist()
        )
    )


def write_report(
    store: Store, folder: str, data: DataConfig, chunks: list[Chunk], duplicates: DuplicateSummary, examples: Examples
) -> None:
    """Write report.json next to the parts; the same input gives the same bytes."""
    shown = [number for pair in duplicates.shown_near for number in pair]
    texts = _fetch(store, f"{folder}/clean", chunks, [*duplicates.first_exact, *shown])
    if duplicates.exact:
        examples = {**examples, "exact_dedup": [_shown(texts[i]) for i in duplicates.first_exact]}
    report: dict[str, Any] = {"examples": dict(sorted(examples.items()))}
    if data.near_dedup.enabled:
        report["near_duplicates"] = _near(duplicates, texts, MinHash.of(data.near_dedup))
    store.write(f"{folder}/report.json", (json.dumps(report, indent=1, ensure_ascii=False) + "\n").encode())


def _near(duplicates: DuplicateSummary, texts: dict[int, Document], minhash: MinHash) -> dict[str, Any]:
    pairs = [(texts[removed], texts[kept]) for removed, kept in duplicates.shown_near]
    return {
        "clusters": duplicates.clusters,
        "removed": duplicates.near,
        "cluster_sizes": dict(sorted(duplicates.cluster_sizes.items())),
        # Removed documents that are similar to the kept one only through other removed ones.
        "below_min_similarity": duplicates.beyond,
        "examples": [
            {"jaccard": round(minhash.similarity(a.text, b.text), 3), "removed": _shown(a), "kept": _shown(b)}
            for a, b in pairs
        ],
    }


def _shown(document: Document) -> dict[str, str]:
    return {"id": document.id, "text": document.text[:EXAMPLE_CHARS]}


def _fetch(store: Store, folder: str, chunks: list[Chunk], numbers: Sequence[Any]) -> dict[int, Document]:
    wanted = np.unique(np.asarray(numbers, np.int64))
    return {
        int(number): document
        for some, documents in read_documents(store, folder, chunks, wanted)
        for number, document in zip(some, documents, strict=True)
    }
