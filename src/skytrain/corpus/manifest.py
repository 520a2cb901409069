"""The manifest of a corpus, `manifest.json`. It is written last: a corpus without a manifest is unfinished."""

from __future__ import annotations

import dataclasses
import json
import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ..config import DataConfig, SkytrainError, nearest, plural
from ..storage import AGAIN, MANIFEST_BYTES, damaged, read_data, read_typed
from .documents import Document, from_parquet, texts_in_parquet
from .versions import choose_version, recipe_hash

if TYPE_CHECKING:
    from ..storage import Store

PART = re.compile(r"part-\d{5,9}\.parquet")


@dataclass(frozen=True)
class CorpusPart:
    """One parquet file; `text_bytes` is UTF-8 before compression."""

    name: str
    documents: int
    text_bytes: int
    bytes: int
    sha256: str


@dataclass(frozen=True)
class StageTotals:
    """Documents and bytes into and out of a stage."""

    name: str
    documents_in: int
    bytes_in: int
    documents_out: int
    bytes_out: int


@dataclass(frozen=True)
class CorpusManifest:
    """The parts of a corpus and how they were made. It has no timestamps, so the same work gives the same bytes."""

    dataset: str
    version: str
    recipe: str
    settings: dict[str, Any]
    fingerprint: dict[str, Any]
    complete: bool  # False if the source had more than data.target_tokens needs
    documents_read: int
    text_bytes_read: int
    documents: int
    text_bytes: int
    stages: list[StageTotals]
    removed: dict[str, int]  # rule -> documents
    parts: list[CorpusPart]
    nul_characters: int = 0  # in the cleaned text

    @property
    def folder(self) -> str:
        return corpus_folder(self.dataset, self.version)

    def to_json(self) -> bytes:
        return (json.dumps(dataclasses.asdict(self), indent=1, ensure_ascii=False) + "\n").encode()


def corpus_folder(dataset: str, version: str) -> str:
    return f"corpora/{dataset}/{version}"


def open_corpus(store: Store, dataset: str, version: str) -> CorpusManifest:
    key = f"{corpus_folder(dataset, version)}/manifest.json"
    manifest = read_typed(store, key, CorpusManifest, MANIFEST_BYTES, AGAIN, nul_characters=0)
    for part in manifest.parts:
        if not PART.fullmatch(part.name):  # exports have files of these names
            raise damaged(store.url(key), f"{part.name!r:.80} is not the name of a part", AGAIN)
    return manifest


def find_corpus(store: Store, data: DataConfig) -> CorpusManifest:
    """Find the corpus for these settings; of several versions, the one that matches the current sources."""
    recipe = recipe_hash(data)
    top = f"corpora/{data.name}"
    known = {}
    for version in store.folders(f"{top}/"):
        if data.version in (None, version) and store.exists(f"{corpus_folder(data.name, version)}/manifest.json"):
            corpus = open_corpus(store, data.name, version)
            if corpus.recipe == recipe:
                known[version] = corpus
    if not known:
        wanted = f" in version {data.version}" if data.version else ""
        raise SkytrainError(
            f"{store.url(top)} holds no corpus of data={data.name} with these settings{wanted}\n"
            "  run `skytrain prepare` with the same KEY=VALUEs first; data made from tokens has no corpus"
        )
    return known[choose_version(data, list(known), store.url(top))]


def find_corpus_by_name(store: Store, name: str) -> CorpusManifest:
    """Find the corpus DATASET or DATASET@VERSION, as `skytrain data list` prints them."""
    dataset, _, wanted = name.partition("@")
    versions = [
        version
        for version in store.folders(f"corpora/{dataset}/")
        if wanted in ("", version) and store.exists(f"{corpus_folder(dataset, version)}/manifest.json")
    ]
    if len(versions) == 1:
        return open_corpus(store, dataset, versions[0])
    if versions:
        problem = f"holds {plural(len(versions), 'version')} of {dataset}: {', '.join(versions)}"
        raise SkytrainError(
            f"{store.url('corpora')} {problem}\n  choose one: {shlex.quote(f'{dataset}@{versions[0]}')}"
        )
    known = sorted(store.folders("corpora"))
    guess = nearest(dataset, known)
    hint = (
        f"did you mean {guess}?" if guess else f"it has {', '.join(known)}" if known else "run `skytrain prepare` first"
    )
    raise SkytrainError(f"{store.url('corpora')} holds no corpus {name}\n  {hint}; data made from tokens has no corpus")


def read_part(store: Store, folder: str, part: CorpusPart) -> Iterator[Document]:
    """Yield the documents of one part; raises if its bytes do not match the manifest."""
    return from_parquet(part_body(store, folder, part))


def read_part_texts(store: Store, folder: str, part: CorpusPart) -> Iterator[tuple[str, str]]:
    """Yield the ids and texts of one part."""
    return texts_in_parquet(part_body(store, folder, part))


def part_body(store: Store, folder: str, part: CorpusPart) -> bytes:
    """Return the bytes of a part; raises if they do not match the manifest."""
    remedy = f"remove {store.url(folder)} and run `skytrain prepare` again"
    return read_data(store, f"{folder}/{part.name}", part.sha256, remedy)
