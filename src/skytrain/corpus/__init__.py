"""Documents: sources, rules and the parquet parts between raw text and tokens."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .build import write_corpus
    from .clean import stages_of
    from .documents import BadRecord, Document
    from .manifest import (
        CorpusManifest,
        CorpusPart,
        corpus_folder,
        find_corpus,
        open_corpus,
        read_corpus,
        read_part,
        read_part_texts,
    )
    from .pool import ordered_threads, worker_count
    from .progress import Pace
    from .versions import choose_version, corpus_version, fingerprint_of, recipe_hash, version_at_hand
    from .warnings import corpus_warnings

_HOMES = {
    "BadRecord": "documents",
    "CorpusManifest": "manifest",
    "CorpusPart": "manifest",
    "Document": "documents",
    "Pace": "progress",
    "choose_version": "versions",
    "corpus_folder": "manifest",
    "corpus_version": "versions",
    "corpus_warnings": "warnings",
    "find_corpus": "manifest",
    "version_at_hand": "versions",
    "fingerprint_of": "versions",
    "open_corpus": "manifest",
    "ordered_threads": "pool",
    "read_corpus": "manifest",
    "read_part": "manifest",
    "read_part_texts": "manifest",
    "recipe_hash": "versions",
    "stages_of": "clean",
    "worker_count": "pool",
    "write_corpus": "build",
}
__all__ = [
    "BadRecord",
    "CorpusManifest",
    "CorpusPart",
    "Document",
    "Pace",
    "choose_version",
    "corpus_folder",
    "corpus_version",
    "corpus_warnings",
    "find_corpus",
    "fingerprint_of",
    "open_corpus",
    "ordered_threads",
    "read_corpus",
    "read_part",
    "read_part_texts",
    "recipe_hash",
    "stages_of",
    "version_at_hand",
    "worker_count",
    "write_corpus",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f".{_HOMES[name]}", __name__), name)
