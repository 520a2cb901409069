"""Export: the kept documents of a corpus as parquet."""

from __future__ import annotations

from collections.abc import Iterator

from ..config import Config
from ..corpus import Compression, export_documents, find_corpus, find_corpus_by_name
from ..runs import Reporter
from ..storage import open_store


def export_kept(
    config: Config, name: str | None, out: str, compression: Compression, overwrite: bool, reporter: Reporter
) -> Iterator[str]:
    """Yields the URL of each file that is written: of the corpus `name`, or the one that `config.data` describes."""
    store = open_store(config.store).patient(config.store.patience)
    corpus = find_corpus_by_name(store, name) if name else find_corpus(store, config.data)
    target = open_store(out).patient(config.store.patience)
    yield from export_documents(store, corpus, target, compression, overwrite=overwrite, progress=reporter.progress)
    reporter.note(f"exported {corpus.documents:,} documents of {corpus.dataset}@{corpus.version}")
