"""Lists what a store has for training: prepared data sets and trained tokenizers."""

from __future__ import annotations

from dataclasses import dataclass

from ..config import Config
from ..corpus import open_corpus
from ..storage import NotFound, Store, open_store
from ..tokens import Prepared, open_prepared, stored_vocab_size, tokens_folder


@dataclass(frozen=True)
class DatasetEntry:
    """A version of a data set, prepared with one tokenizer."""

    dataset: str
    version: str
    tokenizer: str | None  # None: a corpus without tokens yet
    tokens: int
    validation_tokens: int
    documents: int  # of both splits
    text_bytes: int
    bytes: int  # of the shards and their indexes in the store
    corpus_bytes: int  # of the documents in the store; other tokenizers of the version share them


@dataclass(frozen=True)
class TokenizerEntry:
    id: str
    vocab_size: int
    bytes: int
    used_by: list[str]  # data sets, as DATASET@VERSION


@dataclass(frozen=True)
class DataListing:
    datasets: list[DatasetEntry]
    tokenizers: list[TokenizerEntry]


def list_data(config: Config) -> DataListing:
    """Everything that is finished, sorted by name; what is being prepared is not listed."""
    store = open_store(config.store)
    names = sorted({*store.folders("tokens"), *store.folders("corpora")})
    datasets = [entry for name in names for entry in _datasets(store, name)]
    return DataListing(datasets, _tokenizers(store, datasets))


def _datasets(store: Store, dataset: str) -> list[DatasetEntry]:
    entries = []
    for version in sorted({*store.folders(f"tokens/{dataset}"), *store.folders(f"corpora/{dataset}")}):
        folders = [tokens_folder(dataset, version, each) for each in store.folders(f"tokens/{dataset}/{version}")]
        found = [prepared for folder in folders if (prepared := open_prepared(store, folder))]
        try:
            corpus = open_corpus(store, dataset, version)
        except NotFound:
            corpus = None  # made from tokens, or not finished
        corpus_bytes = sum(part.bytes for part in corpus.parts) if corpus else 0
        entries += [_dataset(dataset, version, prepared, corpus_bytes) for prepared in found]
        if corpus and not found:
            entries.append(
                DatasetEntry(
                    dataset=dataset,
                    version=version,
                    tokenizer=None,
                    tokens=0,
                    validation_tokens=0,
                    documents=corpus.documents,
                    text_bytes=corpus.text_bytes,
                    bytes=0,
                    corpus_bytes=corpus_bytes,
                )
            )
    return entries


def _dataset(dataset: str, version: str, prepared: Prepared, corpus_bytes: int) -> DatasetEntry:
    splits = [split for split in (prepared.train, prepared.validation) if split]
    return DatasetEntry(
        dataset=dataset,
        version=version,
        tokenizer=prepared.tokenizer_id,
        tokens=prepared.train.tokens,
        validation_tokens=prepared.validation.tokens if prepared.validation else 0,
        documents=sum(split.documents for split in splits),
        text_bytes=sum(split.text_bytes for split in splits),
        bytes=sum(shard.bytes + 8 * shard.documents for split in splits for shard in split.shards),
        corpus_bytes=corpus_bytes,
    )


def _tokenizers(store: Store, datasets: list[DatasetEntry]) -> list[TokenizerEntry]:
    entries = []
    for id_ in sorted(store.folders("tokenizers")):
        used_by = [f"{each.dataset}@{each.version}" for each in datasets if each.tokenizer == id_]
        size = sum(stat.size for stat in store.list(f"tokenizers/{id_}"))
        entries.append(TokenizerEntry(id_, stored_vocab_size(store, id_), size, used_by))
    return entries
