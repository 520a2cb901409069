"""Tokenizes a corpus on all cores; results are returned in order."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import NamedTuple

import numpy as np

from ..config import set_default
from ..corpus import CorpusManifest, ordered_threads, read_part_texts, utf8_size, worker_count
from ..storage import Store
from .tokenizers import Tokenizer

SLICE_CHARS = 4 << 20  # text passed to the tokenizer at once: bounds memory for parts of any size
SLICES_AT_ONCE = 3


class TokenizedDocument(NamedTuple):
    number: int  # index in its part
    id: str
    tokens: np.ndarray
    text_bytes: int
    trained: np.ndarray | None = None  # for each token, whether the loss is computed on it; None: on all


class TokenizedSlice(NamedTuple):
    """Documents `first`, `first + 1`, ... of a part: the i-th of them has `tokens[ends[i - 1] : ends[i]]`."""

    part: int
    first: int
    ids: list[str]
    tokens: np.ndarray
    ends: np.ndarray
    text_bytes: np.ndarray
    trained: np.ndarray | None = None

    def documents(self) -> Iterator[TokenizedDocument]:
        start = 0
        rows = zip(self.ids, self.ends.tolist(), self.text_bytes.tolist(), strict=True)
        for number, (id_, end, text_bytes) in enumerate(rows, self.first):
            trained = None if self.trained is None else self.trained[start:end]
            yield TokenizedDocument(
                number=number, id=id_, tokens=self.tokens[start:end], text_bytes=text_bytes, trained=trained
            )
            start = end


def tokenize_corpus(
    store: Store,
    corpus: CorpusManifest,
    tokenizer: Tokenizer,
    workers: int | None,
    first_part: int = 0,
    wanted: Callable[[int, int, str], bool] = lambda part, number, id_: True,
) -> Iterator[TokenizedSlice]:
    """Tokenize every document from `first_part` on, in order.

    A document that is not `wanted(part, number in the part, id)` is returned without tokens.
    """
    # Read by the tokenizer's thread pool when it starts. It does the work while our threads read and write.
    set_default("RAYON_NUM_THREADS", str(worker_count(workers)))
    slices = _slices(store, corpus, first_part, wanted)
    yield from ordered_threads(partial(tokenize_slice, tokenizer), slices, SLICES_AT_ONCE)


class TextSlice(NamedTuple):
    part: int
    first: int
    ids: list[str]
    texts: list[str]


def _slices(
    store: Store, corpus: CorpusManifest, first_part: int, wanted: Callable[[int, int, str], bool]
) -> Iterator[TextSlice]:
    for part in range(first_part, len(corpus.parts)):
        yield from slices_of(store, corpus, part, wanted)


def slices_of(
    store: Store,
    corpus: CorpusManifest,
    part: int,
    wanted: Callable[[int, int, str], bool] = lambda part, number, id_: True,
) -> Iterator[TextSlice]:
    """Yield the texts of one part in slices for the tokenizer."""
    ids: list[str] = []
    texts: list[str] = []
    chars = first = 0
    for number, (id_, text) in enumerate(read_part_texts(store, corpus.folder, corpus.parts[part])):
        ids.append(id_)
        texts.append(text if wanted(part, number, id_) else "")
        chars += len(texts[-1])
        if chars >= SLICE_CHARS:
            yield TextSlice(part, first, ids, texts)
            ids = []
            texts = []
            chars = 0
            first = number + 1
    if ids:  # empty if the last document filled its slice
        yield TextSlice(part, first, ids, texts)


def tokenize_slice(tokenizer: Tokenizer, slice_: TextSlice) -> TokenizedSlice:
    encoded = tokenizer.encode_documents(slice_.texts)
    return TokenizedSlice(
        part=slice_.part,
        first=slice_.first,
        ids=slice_.ids,
        tokens=np.concatenate(encoded) if len(encoded) > 1 else encoded[0],
        ends=np.cumsum([len(ids) for ids in encoded], dtype=np.int64),
        text_bytes=np.array([utf8_size(text) for text in slice_.texts], np.int64),
    )
