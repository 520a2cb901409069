"""Prepare: sources -> documents -> tokens in the store."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Any

import numpy as np

from ..config import BPETokenizerConfig, Config, SkytrainError, format_bytes, format_count, make
from ..corpus import CorpusManifest, corpus_version, read_corpus, recipe_hash, write_corpus
from ..runs import Reporter
from ..storage import NotFound, Store, open_store
from ..tokens import (
    Prepared,
    ShardWriter,
    Tokenizer,
    open_prepared,
    open_tokenizer,
    split_of,
    store_tokenizer,
    tokens_folder,
    train_bpe,
)

BATCH_DOCUMENTS = 256  # texts that the tokenizer takes at once

TokenDocument = tuple[str, np.ndarray, int]  # id, tokens, bytes of text


def prepare(config: Config, reporter: Reporter) -> Prepared:
    """Everything up to shards with a manifest. What an earlier call finished is used again, not made again."""
    store = open_store(config.store)
    source = make(config.data.source.target, config.data.source.args, key="data.source")
    version = corpus_version(config.data, source.fingerprint())
    if hasattr(source, "token_documents"):
        tokenizer = _tokenizer(config, store, iter(()), reporter)
        documents: Iterator[TokenDocument] = (
            (f"{i}", ids, 0) for i, ids in enumerate(source.token_documents(tokenizer.vocab_size))
        )
    else:
        corpus = _corpus(config, store, source, version, reporter)
        tokenizer = _tokenizer(config, store, (document.text for document in read_corpus(store, corpus)), reporter)
        documents = _tokenize(store, corpus, tokenizer)
    folder = tokens_folder(config.data.name, version, tokenizer.id)
    prepared = open_prepared(store, folder)
    if prepared is None:
        prepared = _write_splits(config, store, folder, version, tokenizer, documents, reporter)
    reporter.note(describe(store, prepared))
    return prepared


def describe(store: Store, prepared: Prepared) -> str:
    splits = [prepared.train] + ([prepared.validation] if prepared.validation else [])
    counts = ", ".join(
        f"{m.split} {format_count(m.tokens)} tokens in {m.documents} documents and {len(m.shards)} shard{'s' * (len(m.shards) > 1)}"
        for m in splits
    )
    return f"prepared {counts}\n  {store.url(prepared.folder)}"


def _corpus(config: Config, store: Store, source: Any, version: str, reporter: Reporter) -> CorpusManifest:
    from ..corpus.documents import open_corpus

    try:
        corpus = open_corpus(store, config.data.name, version)
    except NotFound:
        read = 0

        def advance(what: str, amount: float) -> None:
            nonlocal read
            read += int(amount) if what == "documents" else 0
            reporter.progress("documents", read, None)

        corpus = write_corpus(store, config.data, source, version, advance)
        reporter.progress(
            "documents", corpus.documents_read, corpus.documents_read, format_bytes(corpus.text_bytes_read)
        )
    rows = [("read", f"{corpus.documents_read} documents, {format_bytes(corpus.text_bytes_read)}")]
    rows += [(f"removed by {rule}", f"{count} documents") for rule, count in corpus.removed.items()]
    rows += [("kept", f"{corpus.documents} documents, {format_bytes(corpus.text_bytes)}")]
    reporter.table(f"corpus {config.data.name} {version}", rows)
    return corpus


def _tokenizer(config: Config, store: Store, texts: Iterator[str], reporter: Reporter) -> Tokenizer:
    if not isinstance(config.tokenizer, BPETokenizerConfig):
        return open_tokenizer(config.tokenizer, store)
    tokenizer = train_bpe(config.tokenizer, texts)
    reporter.note(f"tokenizer {tokenizer.id}: {tokenizer.vocab_size} tokens, trained on the corpus")
    store_tokenizer(tokenizer, store)
    return tokenizer


def _tokenize(store: Store, corpus: CorpusManifest, tokenizer: Tokenizer) -> Iterator[TokenDocument]:
    documents = read_corpus(store, corpus)
    while batch := list(islice(documents, BATCH_DOCUMENTS)):
        encoded = tokenizer.encode_batch([document.text for document in batch])
        for document, ids in zip(batch, encoded, strict=True):
            yield document.id, ids, len(document.text.encode())


def _write_splits(
    config: Config,
    store: Store,
    folder: str,
    version: str,
    tokenizer: Tokenizer,
    documents: Iterator[TokenDocument],
    reporter: Reporter,
) -> Prepared:
    data = config.data
    made_from = {"dataset": data.name, "version": version, "recipe": recipe_hash(data)}
    with (
        ShardWriter(store, f"{folder}/train", "train", tokenizer, data.shard_tokens) as train,
        ShardWriter(store, f"{folder}/validation", "validation", tokenizer, data.shard_tokens) as validation,
    ):
        for number, (document_id, ids, text_bytes) in enumerate(documents):
            writer = train if split_of(document_id, data.validation_fraction) == "train" else validation
            writer.add(ids, text_bytes)
            if number % BATCH_DOCUMENTS == 0:
                reporter.progress("tokens", train.tokens, data.target_tokens)
            if data.target_tokens and train.tokens >= data.target_tokens:
                break
        if not train.tokens:
            raise SkytrainError(
                f"data={data.name}: the training split is empty\n  data.validation_fraction={data.validation_fraction} took every document"
            )
        reporter.progress("tokens", train.tokens, train.tokens)
        # The training split last: what has one is whole.
        if validation.tokens:
            validation.finish(made_from)
        train.finish(made_from)
    prepared = open_prepared(store, folder)
    assert prepared is not None
    return prepared
