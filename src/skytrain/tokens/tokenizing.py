"""A corpus into tokens on every core: parts go out, their tokens come back in order."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np

from skytrain.corpus import CorpusManifest, ordered, read_part, worker_count
from skytrain.corpus.characters import utf8_size
from skytrain.storage import Store

from .tokenizers import ByteLevelBPE, Tokenizer, gpt2

BATCH_CHARS = 4 << 20  # texts that the tokenizer takes at once


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

    assert isinstance(tokenizer, ByteLevelBPE)
    given = (None if tokenizer.id == "gpt2" else tokenizer.definition, tokenizer.name)
    yield from ordered(_tokenize, texts(), worker_count(workers), _setup, given)


_TOKENIZER: ByteLevelBPE


def _setup(definition: str | None, name: str) -> None:
    global _TOKENIZER
    os.environ.setdefault("RAYON_NUM_THREADS", "1")  # one core for each process: more threads would only fight
    _TOKENIZER = gpt2() if definition is None else ByteLevelBPE(name, definition)


def _tokenize(documents: list[tuple[str, str | None]]) -> TokenizedPart:
    encoded: list[np.ndarray] = []
    batch: list[str] = []
    chars = 0
    texts = [text or "" for _, text in documents]
    for text in texts:
        batch.append(text)
        chars += len(text)
        if chars >= BATCH_CHARS:
            encoded += _TOKENIZER.encode_batch(batch)
            batch, chars = [], 0
    encoded += _TOKENIZER.encode_batch(batch) if batch else []
    dtype: Any = np.uint16 if _TOKENIZER.vocab_size <= 2**16 else np.uint32
    return TokenizedPart(
        [id_ for id_, _ in documents],
        np.concatenate(encoded).astype(dtype) if encoded else np.empty(0, dtype),
        np.cumsum([len(ids) for ids in encoded]),
        np.array([utf8_size(text) for text in texts], np.int64),
    )
