"""A corpus into tokens on every core: parts go out, their tokens come back in order."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from skytrain.corpus import CorpusManifest, ordered_threads, read_part, worker_count
from skytrain.corpus.characters import utf8_size
from skytrain.storage import Store

from .tokenizers import Tokenizer

BATCH_CHARS = 4 << 20  # texts that the tokenizer takes at once
READERS = 2  # parts in work: one is read while another is tokenized


class TokenizedPart(NamedTuple):
    """The documents of one part: document i has `tokens[ends[i - 1] : ends[i]]`."""

    ids: list[str]
    tokens: np.ndarray
    ends: np.ndarray
    text_bytes: np.ndarray


def tokenize_corpus(
    store: Store,
    corpus: CorpusManifest,
    tokenizer: Tokenizer,
    workers: int | None,
    first_part: int = 0,
    wanted: Callable[[int, int, str], bool] = lambda part, number, id_: True,
) -> Iterator[TokenizedPart]:
    """Every part from `first_part` on. A document that is not `wanted` (by part, number in it and id) comes back without tokens."""

    def texts() -> Iterator[list[tuple[str, str | None]]]:
        for number, part in enumerate(corpus.parts[first_part:], start=first_part):
            documents = enumerate(read_part(store, corpus.folder, part))
            yield [
                (document.id, document.text if wanted(number, i, document.id) else None) for i, document in documents
            ]

    # Read by the tokenizer's own threads when they start. They do the work, and let our threads read and write meanwhile.
    os.environ.setdefault("RAYON_NUM_THREADS", str(worker_count(workers)))
    yield from ordered_threads(partial(_tokenize, tokenizer), texts(), READERS)


def _tokenize(tokenizer: Tokenizer, documents: list[tuple[str, str | None]]) -> TokenizedPart:
    encoded: list[np.ndarray] = []
    batch: list[str] = []
    chars = 0
    texts = [text or "" for _, text in documents]
    for text in texts:
        batch.append(text)
        chars += len(text)
        if chars >= BATCH_CHARS:
            encoded += tokenizer.encode_batch(batch)
            batch, chars = [], 0
    encoded += tokenizer.encode_batch(batch) if batch else []
    dtype: Any = np.uint16 if tokenizer.vocab_size <= 2**16 else np.uint32
    return TokenizedPart(
        [id_ for id_, _ in documents],
        np.concatenate(encoded).astype(dtype) if encoded else np.empty(0, dtype),
        np.cumsum([len(ids) for ids in encoded]),
        np.array([utf8_size(text) for text in texts], np.int64),
    )
