"""Corpora as tests look at them: all documents, and not part by part as tokenizing does."""

from collections.abc import Iterator

from skytrain.corpus import CorpusManifest, Document, read_part
from skytrain.storage import Store


def read_corpus(store: Store, manifest: CorpusManifest) -> Iterator[Document]:
    for part in manifest.parts:
        yield from read_part(store, manifest.folder, part)
