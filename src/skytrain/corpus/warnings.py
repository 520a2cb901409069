"""Warnings about a prepared corpus that is probably not what the user intended."""

from __future__ import annotations

from typing import Any

from ..config import plural
from .manifest import CorpusManifest
from .sources.text import has_separator_line


def corpus_warnings(source: Any, corpus: CorpusManifest) -> list[str]:
    """Return one warning per suspicious finding, with what to do about it."""
    warnings = (_separator_warning(source, corpus), _nul_warning(corpus))
    return [warning for warning in warnings if warning]


def _separator_warning(source: Any, corpus: CorpusManifest) -> str | None:
    separator = getattr(source, "separator", None)
    if separator is None or not hasattr(source, "pieces"):
        return None
    files = source.pieces()
    # If there are more documents than files, the separator was found; otherwise search the files for it.
    if corpus.documents_read > len(files) or any(has_separator_line(file, separator) for file in files):
        return None
    return (
        f"no line of {plural(len(files), 'file')} is data.source.separator={separator!r}: each file is one document\n"
        "  a separator is an entire line; set the one that the files use, or data.source.separator=null"
    )


def _nul_warning(corpus: CorpusManifest) -> str | None:
    if not corpus.nul_characters:
        return None
    return (
        f"the text holds {plural(corpus.nul_characters, 'NUL byte')}, which become tokens: is a source binary, or UTF-16?\n"
        "  data/cleaning=normalize removes them"
    )
