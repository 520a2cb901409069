"""Documents: sources, rules and the parquet parts between raw text and tokens."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .documents import CorpusManifest, CorpusPart, Document, read_corpus, write_corpus
    from .versions import corpus_version, recipe_hash

_HOMES = {
    "CorpusManifest": "documents",
    "CorpusPart": "documents",
    "Document": "documents",
    "corpus_version": "versions",
    "read_corpus": "documents",
    "recipe_hash": "versions",
    "write_corpus": "documents",
}
__all__ = [
    "CorpusManifest",
    "CorpusPart",
    "Document",
    "corpus_version",
    "read_corpus",
    "recipe_hash",
    "write_corpus",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f".{_HOMES[name]}", __name__), name)
