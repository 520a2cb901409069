"""Documents and the parquet parts that hold them between cleaning and tokenizing."""

from __future__ import annotations

import dataclasses
import hashlib
import io
import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from skytrain.config import DataConfig, MissingExtra, SkytrainError

from .versions import recipe_hash

if TYPE_CHECKING:
    from skytrain.storage import Store

Progress = Callable[[str, float], None]


@dataclass(frozen=True, slots=True)
class Document:
    """One text with a name that stays the same from run to run."""

    id: str
    text: str
    source: str
    meta: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class CorpusPart:
    """One parquet file; `text_bytes` is UTF-8 before compression."""

    name: str
    documents: int
    text_bytes: int
    bytes: int
    sha256: str


@dataclass(frozen=True)
class CorpusManifest:
    """manifest.json of a corpus: its parts and how they were made. No clock, so the same work gives the same bytes."""

    dataset: str
    version: str
    recipe: str
    settings: dict[str, Any]
    fingerprint: dict[str, Any]
    documents_read: int
    text_bytes_read: int
    documents: int
    text_bytes: int
    removed: dict[str, int]  # rule -> documents
    parts: list[CorpusPart]

    @property
    def folder(self) -> str:
        return corpus_folder(self.dataset, self.version)

    def to_json(self) -> bytes:
        return (json.dumps(dataclasses.asdict(self), indent=1, ensure_ascii=False) + "\n").encode()

    @classmethod
    def from_json(cls, data: bytes) -> CorpusManifest:
        values = json.loads(data)
        return cls(**{**values, "parts": [CorpusPart(**part) for part in values["parts"]]})


def corpus_folder(dataset: str, version: str) -> str:
    return f"corpora/{dataset}/{version}"


def write_corpus(
    store: Store, data: DataConfig, source: Any, version: str, progress: Progress | None = None
) -> CorpusManifest:
    """Clean the source's documents into parquet parts; the manifest is written last, so a folder without one is nothing."""
    folder = corpus_folder(data.name, version)
    read = Counter[str]()
    removed: Counter[str] = Counter(dict.fromkeys(_rules(data), 0))
    parts: list[CorpusPart] = []
    for batch in _batches(_kept(source.documents(), data, read, removed, progress), data.part_bytes):
        name = f"part-{len(parts):05d}.parquet"
        body = _to_parquet(batch)
        store.write(f"{folder}/{name}", body)
        parts.append(CorpusPart(name, len(batch), _text_bytes(batch), len(body), hashlib.sha256(body).hexdigest()))
    if not parts:
        raise SkytrainError(_nothing_left(data, read["documents"], removed))
    settings = dataclasses.asdict(data)
    del settings["version"]
    manifest = CorpusManifest(
        dataset=data.name,
        version=version,
        recipe=recipe_hash(data),
        settings=settings,
        fingerprint=source.fingerprint(),
        documents_read=read["documents"],
        text_bytes_read=read["bytes"],
        documents=sum(part.documents for part in parts),
        text_bytes=sum(part.text_bytes for part in parts),
        removed=dict(sorted(removed.items())),
        parts=parts,
    )
    if not store.create(f"{folder}/manifest.json", manifest.to_json()):
        return open_corpus(store, data.name, version)  # another process finished the same work first
    return manifest


def open_corpus(store: Store, dataset: str, version: str) -> CorpusManifest:
    return CorpusManifest.from_json(store.read(f"{corpus_folder(dataset, version)}/manifest.json"))


def read_corpus(store: Store, manifest: CorpusManifest) -> Iterator[Document]:
    """Every document in order; a part whose bytes are not those of the manifest stops the reading."""
    for part in manifest.parts:
        key = f"{manifest.folder}/{part.name}"
        body = store.read(key)
        if hashlib.sha256(body).hexdigest() != part.sha256:
            raise SkytrainError(
                f"{store.url(key)} is not the file that its manifest names: {len(body)} bytes with another sha256, expected {part.bytes} bytes"
                f"\n  remove {store.url(manifest.folder)} and run `skytrain prepare` again"
            )
        yield from _from_parquet(body)


def _rules(data: DataConfig) -> list[str]:
    return ["min_chars", *(["exact_dedup"] if data.exact_dedup else [])]


def _kept(
    documents: Iterable[Document],
    data: DataConfig,
    read: Counter[str],
    removed: Counter[str],
    progress: Progress | None,
) -> Iterator[Document]:
    seen: set[bytes] = set()
    for document in documents:
        encoded = document.text.encode()
        read["documents"] += 1
        read["bytes"] += len(encoded)
        if progress:
            progress("documents", 1)
        if len(document.text) < data.min_chars:
            removed["min_chars"] += 1
            continue
        if data.exact_dedup:
            digest = hashlib.blake2b(encoded, digest_size=16).digest()
            if digest in seen:
                removed["exact_dedup"] += 1
                continue
            seen.add(digest)
        yield document


def _batches(documents: Iterable[Document], part_bytes: int) -> Iterator[list[Document]]:
    batch: list[Document] = []
    size = 0
    for document in documents:
        batch.append(document)
        size += len(document.text.encode())
        if size >= part_bytes:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


def _text_bytes(documents: Iterable[Document]) -> int:
    return sum(len(document.text.encode()) for document in documents)


def _nothing_left(data: DataConfig, documents_read: int, removed: Counter[str]) -> str:
    if not documents_read:
        return f"data={data.name}: the source {data.source.target} yielded no documents"
    by_rule = ", ".join(f"{rule} removed {count}" for rule, count in removed.items() if count)
    return f"data={data.name}: nothing is left of {documents_read} documents: {by_rule}\n  loosen that rule, for example data.min_chars={min(1, data.min_chars)}"


def _pyarrow() -> tuple[Any, Any]:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        raise MissingExtra("pyarrow", "data") from None
    return pyarrow, pyarrow.parquet


def _to_parquet(documents: list[Document]) -> bytes:
    pa, parquet = _pyarrow()
    table = pa.table(
        {
            "id": pa.array([document.id for document in documents], pa.large_string()),
            "text": pa.array([document.text for document in documents], pa.large_string()),
            "source": pa.array([document.source for document in documents], pa.large_string()),
            # JSON, because sources differ in what they say about a document and a parquet column has one type.
            "meta": pa.array(
                [json.dumps(document.meta, sort_keys=True, ensure_ascii=False) for document in documents],
                pa.large_string(),
            ),
        }
    )
    sink = io.BytesIO()
    parquet.write_table(table, sink, compression="zstd", use_dictionary=["source"], write_statistics=False)
    return sink.getvalue()


def _from_parquet(body: bytes) -> Iterator[Document]:
    pa, parquet = _pyarrow()
    for batch in parquet.ParquetFile(pa.BufferReader(body)).iter_batches(batch_size=1024):
        columns = (batch.column(name).to_pylist() for name in ("id", "text", "source", "meta"))
        for id_, text, source, meta in zip(*columns, strict=True):
            yield Document(id_, text, source, json.loads(meta))
