"""Builds a corpus from a source: cleans it in chunks, finds duplicates across them, writes parts, then the manifest."""

from __future__ import annotations

import dataclasses
import hashlib
import math
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ..config import DataConfig, SkytrainError, format_bytes, plural
from ..storage import ScratchFolder, ScratchFull, Store, StoreError
from .chunks import Chunk, clean_source, read_column, read_facts, read_signatures, read_texts
from .dedup import HASHED, KEPT, NEAR, Duplicates, find_duplicates
from .duplicates import REMOVED, DocumentIds, FoundDuplicates, write_duplicates
from .files import unpacked_bytes
from .finish import CleanedCorpus, check_documents, finish_corpus
from .manifest import CorpusManifest, CorpusPart, corpus_folder
from .minhash import MinHash
from .near import COMPARED, SCRATCH_BYTES_PER_SHINGLE, NearInputs, scratch_bytes_per_document
from .pool import WorkerLost, ordered_threads
from .progress import CleaningProgress, ShowProgress
from .report import Examples, keep_examples, summarize

PAIRS_AT_ONCE = 1 << 16
PARTS_AT_ONCE = 2  # one is written while the next is assembled; more would only use memory
TARGET_SLACK = 1.05  # text read beyond the target before searching for duplicates


class Slice(NamedTuple):
    """The documents of one chunk that go into a part, as row numbers within the chunk."""

    chunk: int
    rows: np.ndarray


def write_corpus(
    store: Store, data: DataConfig, source: Any, version: str, progress: ShowProgress | None = None
) -> CorpusManifest:
    """Clean the source and write its parts and manifest.

    If killed at any moment and called again, it resumes after the last finished chunk and writes the same bytes.
    """
    folder = corpus_folder(data.name, version)
    workspace = ScratchFolder("skytrain-corpus")
    try:
        cleaned, duplicates = _clean_and_compare(store, f"{folder}/clean", data, source, workspace, progress)
        check_documents(store, folder, data, cleaned)
        with workspace.needing("the ids of duplicates"):
            _write_found(store, folder, cleaned.chunks, duplicates, workspace.path)
        parts = list(_parts(store, folder, data, cleaned.chunks, duplicates, progress))
        _release_arrow()
    except (StoreError, ScratchFull, WorkerLost):
        raise  # keep finished chunks for the next call
    except SkytrainError:
        store.delete_all(f"{folder}/clean")  # a corrected input has another version and would never reuse these chunks
        raise
    finally:
        workspace.remove()
    return finish_corpus(store, data, source, version, cleaned, parts)


def _release_arrow() -> None:
    """Return the memory that Arrow keeps after writing tables: the tokenizer needs it next."""
    import pyarrow

    pyarrow.default_memory_pool().release_unused()


def needed_text(data: DataConfig, source: Any) -> int | None:
    """Return how many bytes of text the target needs; None without a target. Validation files come before and in addition."""
    if not data.target_tokens:
        return None
    held_out = source.validation_pieces() if hasattr(source, "validation_pieces") else []
    training = data.target_tokens / (1 - data.validation_fraction) * data.bytes_per_token
    return math.ceil(unpacked_bytes(held_out) + training)


def _clean_and_compare(
    store: Store, folder: str, data: DataConfig, source: Any, workspace: ScratchFolder, progress: ShowProgress | None
) -> tuple[CleanedCorpus, Duplicates]:
    """Clean chunks until the source ends or enough text remains after deduplication.

    The stopping point does not depend on timing.
    """
    examples: Examples = {}
    needed = needed_text(data, source)
    goal = needed * TARGET_SLACK if needed else math.inf
    chunks: list[Chunk] = []
    complete = False
    size = 0
    display = CleaningProgress(progress, source, needed)
    stream = clean_source(store, folder, data, source, needed, display.show)
    try:
        while True:
            for chunk, _ in stream:
                keep_examples(examples, chunk.examples)
                chunks.append(dataclasses.replace(chunk, examples={}))  # memory would otherwise grow with the corpus
                size += chunk.bytes
                if size >= goal:
                    break
            else:
                complete = True
            duplicates = _duplicates(store, folder, data, chunks, workspace)
            if complete or needed is None or (kept := _kept_bytes(store, folder, chunks, duplicates)) >= needed:
                return CleanedCorpus(chunks, summarize(duplicates), complete, examples), duplicates
            goal = size * needed / max(1, kept) * TARGET_SLACK
    finally:
        stream.close()  # type: ignore[attr-defined]


def _facts(store: Store, folder: str, chunks: list[Chunk]) -> Iterator[np.ndarray]:
    for chunk in chunks:
        yield read_facts(store, folder, chunk)


def _duplicates(
    store: Store, folder: str, data: DataConfig, chunks: list[Chunk], workspace: ScratchFolder
) -> Duplicates:
    documents = sum(chunk.documents for chunk in chunks)
    with workspace.needing(_scratch_room(documents, data)):
        near = _near_inputs(store, folder, data, chunks, workspace.path) if data.near_dedup.enabled else None
        facts = _facts(store, folder, chunks)
        return find_duplicates(facts, documents, workspace.path, exact=data.exact_dedup, near=near)


def _scratch_room(documents: int, data: DataConfig) -> str:
    """Say how much the search may write to its scratch folder, for the error when the disk is full."""
    equal = (2 if data.exact_dedup else 1) * HASHED.itemsize
    if not data.near_dedup.enabled:
        return f"{format_bytes(documents * equal)} to find duplicates among {plural(documents, 'document')}"
    minhash = MinHash.of(data.near_dedup)
    size = documents * max(minhash.signature_bytes + equal, scratch_bytes_per_document(minhash))
    return (
        f"{format_bytes(size)} to find duplicates among {plural(documents, 'document')}, and "
        f"{SCRATCH_BYTES_PER_SHINGLE} bytes for each word of those with near-duplicates, "
        f"{COMPARED.itemsize} for each pair"
    )


def _near_inputs(store: Store, folder: str, data: DataConfig, chunks: list[Chunk], scratch: Path) -> NearInputs:
    signatures = scratch / "signatures"
    with signatures.open("wb") as file:
        for chunk in chunks:
            file.write(read_signatures(store, folder, chunk))
    texts = partial(read_column, "text", store, folder, chunks)
    return NearInputs(signatures, texts, data.near_dedup.min_similarity, MinHash.of(data.near_dedup))


def _write_found(store: Store, folder: str, chunks: list[Chunk], duplicates: Duplicates, scratch: Path) -> None:
    """Write every removed document and every compared pair beside the corpus."""
    concerned = duplicates.fate != KEPT
    concerned[duplicates.twin[concerned]] = True
    for pairs in _compared(duplicates):
        concerned[pairs["a"]] = True
        concerned[pairs["b"]] = True
    numbers = np.flatnonzero(concerned)
    ids = (some for _, some in read_column("id", store, f"{folder}/clean", chunks, numbers))
    names = DocumentIds(scratch / "ids", numbers, ids)
    compared = None if duplicates.compared is None else _compared(duplicates)
    write_duplicates(store, folder, FoundDuplicates(_removed(duplicates), compared, names))
    names.remove()


def _compared(duplicates: Duplicates) -> Iterator[np.ndarray]:
    if duplicates.compared is None:
        return
    with duplicates.compared.open("rb") as file:
        while len(records := np.fromfile(file, COMPARED, PAIRS_AT_ONCE)):
            yield records


def _removed(duplicates: Duplicates) -> Iterator[np.ndarray]:
    numbers = np.flatnonzero(duplicates.fate != KEPT)
    near = 0
    for start in range(0, len(numbers), PAIRS_AT_ONCE):
        some = numbers[start : start + PAIRS_AT_ONCE]
        records = np.zeros(len(some), REMOVED)
        records["number"] = some
        records["fate"] = duplicates.fate[some]
        records["twin"] = duplicates.twin[some]
        similar = records["fate"] == NEAR
        count = int(similar.sum())
        records["similarity"][similar] = duplicates.similarity[near : near + count]
        near += count
        yield records


def _kept_bytes(store: Store, folder: str, chunks: list[Chunk], duplicates: Duplicates) -> int:
    first = total = 0
    for facts in _facts(store, folder, chunks):
        total += int(facts["bytes"][duplicates.fate[first : first + len(facts)] == KEPT].sum())
        first += len(facts)
    return total


def _parts(
    store: Store,
    folder: str,
    data: DataConfig,
    chunks: list[Chunk],
    duplicates: Duplicates,
    progress: ShowProgress | None,
) -> Iterator[CorpusPart]:
    plan = plan_parts(_facts(store, f"{folder}/clean", chunks), data.part_bytes, duplicates.fate)
    assemble_part = partial(assemble, store, f"{folder}/clean", chunks)
    total = sum(chunk.bytes for chunk in chunks)
    written = 0
    for number, (body, documents, text_bytes) in enumerate(ordered_threads(assemble_part, plan, PARTS_AT_ONCE)):
        name = f"part-{number:05d}.parquet"
        store.write(f"{folder}/{name}", body)
        written += text_bytes
        if progress:
            progress("write", written / 1e6, total / 1e6, f"{plural(number + 1, 'part')}, {format_bytes(written)}")
        yield CorpusPart(
            name=name,
            documents=documents,
            text_bytes=text_bytes,
            bytes=len(body),
            sha256=hashlib.sha256(body).hexdigest(),
        )
    if progress:
        progress("write", total / 1e6, total / 1e6, f"{format_bytes(written)} kept")


def plan_parts(facts: Iterator[np.ndarray], part_bytes: int, fate: np.ndarray) -> Iterator[list[Slice]]:
    """Assign documents to parts, in order; a part is full at `part_bytes`."""
    slices: list[Slice] = []
    size = first = 0
    for number, chunk in enumerate(facts):
        rows = np.flatnonzero(fate[first : first + len(chunk)] == KEPT)
        first += len(chunk)
        while len(rows):
            ends = size + np.cumsum(chunk["bytes"][rows].astype(np.int64))
            take = int(np.searchsorted(ends, part_bytes)) + 1  # including the document that fills the part
            slices.append(Slice(number, rows[:take]))
            size = int(ends[min(take, len(rows)) - 1])
            rows = rows[take:]
            if size >= part_bytes:
                yield slices
                slices = []
                size = 0
    if slices:
        yield slices


def assemble(store: Store, folder: str, chunks: list[Chunk], slices: list[Slice]) -> tuple[bytes, int, int]:
    """Build a part chunk by chunk, so that only its compressed form is held in memory.

    Returns the parquet bytes, the number of documents and the bytes of text.
    """
    import pyarrow as pa
    import pyarrow.compute as pc
    import pyarrow.parquet as pq

    from .documents import tables_to_parquet

    text_bytes = 0

    def tables() -> Iterator[Any]:
        nonlocal text_bytes
        for number, rows in slices:
            table = pq.read_table(pa.BufferReader(read_texts(store, folder, chunks[number])))
            if len(rows) < table.num_rows:
                table = table.take(pa.array(rows))
            text_bytes += pc.sum(pc.binary_length(table["text"])).as_py() or 0
            yield table

    return tables_to_parquet(tables()), sum(len(rows) for _, rows in slices), text_bytes
