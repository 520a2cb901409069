"""The end of a preparation, the same for every engine: checks, report.json and manifest.json."""

from __future__ import annotations

import dataclasses
from collections import Counter
from typing import Any, NamedTuple

import numpy as np

from ..config import DataConfig, SkytrainError, plural
from ..storage import Store
from .chunks import Chunk, read_documents
from .clean import stages_of
from .manifest import CorpusManifest, CorpusPart, StageTotals, corpus_folder, open_corpus
from .report import DuplicateSummary, Examples, write_report
from .versions import fingerprint_of, recipe_hash


class CleanedCorpus(NamedTuple):
    """The cleaned chunks, what was found among their documents, and examples of what each rule removed."""

    chunks: list[Chunk]
    duplicates: DuplicateSummary
    complete: bool  # whether the source was read to its end
    examples: Examples


def check_documents(store: Store, folder: str, data: DataConfig, cleaned: CleanedCorpus) -> None:
    """Raise if documents share an id and that is an error, or if none is left."""
    duplicates = cleaned.duplicates
    if duplicates.same_id and data.bad_records == "stop":
        ((_, (document,)),) = read_documents(
            store, f"{folder}/clean", cleaned.chunks, np.array(duplicates.first_same_id[:1])
        )
        raise SkytrainError(
            f"data={data.name}: {plural(duplicates.same_id, 'document')} with the id of another one, the first is {document.id!r}\n  data.bad_records=skip keeps the first document of each id"
        )
    if sum(chunk.documents for chunk in cleaned.chunks) > duplicates.same_id + duplicates.exact + duplicates.near:
        return
    read = sum(chunk.documents_read for chunk in cleaned.chunks)
    if not read:
        raise SkytrainError(f"data={data.name}: the source {data.source.target} yielded no documents")
    # A minimum of 1 removes nothing but empty texts.
    hint = (
        "loosen that rule, for example data.min_chars=1"
        if data.min_chars > 1
        else "check that data.source reads the text you intend, or loosen that rule"
    )
    by_rule = ", ".join(f"{rule} removed {count}" for rule, count in _removed(data, cleaned).items() if count)
    raise SkytrainError(f"data={data.name}: nothing is left of {plural(read, 'document')}: {by_rule}\n  {hint}")


def finish_corpus(
    store: Store, data: DataConfig, source: Any, version: str, cleaned: CleanedCorpus, parts: list[CorpusPart]
) -> CorpusManifest:
    """Write the report and the manifest, and delete the chunks."""
    folder = corpus_folder(data.name, version)
    write_report(store, folder, data, cleaned.chunks, cleaned.duplicates, cleaned.examples)
    manifest = _manifest(data, source, version, cleaned, parts)
    if not store.create(f"{folder}/manifest.json", manifest.to_json()):
        manifest = open_corpus(store, data.name, version)  # another process finished the same work first
    store.delete_all(f"{folder}/clean")
    return manifest


def _removed(data: DataConfig, cleaned: CleanedCorpus) -> dict[str, int]:
    removed: Counter[str] = Counter({"min_chars": 0})
    for chunk in cleaned.chunks:
        removed.update(chunk.removed)
    duplicates = cleaned.duplicates
    for rule, count, on in (
        ("exact_dedup", duplicates.exact, data.exact_dedup),
        ("near_dedup", duplicates.near, data.near_dedup.enabled),
        ("duplicate_ids", duplicates.same_id, False),
    ):
        if on or count:
            removed[rule] = count
    return dict(sorted(removed.items()))


def _stages(data: DataConfig, chunks: list[Chunk], parts: list[CorpusPart]) -> list[StageTotals]:
    stages = []
    for name in stages_of(data):
        columns = (
            np.array([chunk.tallies[name] for chunk in chunks if name in chunk.tallies], np.int64)
            .reshape(-1, 4)
            .sum(axis=0)
        )
        stages.append(StageTotals(name, *map(int, columns)))
    documents = sum(chunk.documents for chunk in chunks)
    size = sum(chunk.bytes for chunk in chunks)
    stages.append(
        StageTotals(
            name="dedup",
            documents_in=documents,
            bytes_in=size,
            documents_out=sum(part.documents for part in parts),
            bytes_out=sum(part.text_bytes for part in parts),
        )
    )
    return stages


def _manifest(
    data: DataConfig, source: Any, version: str, cleaned: CleanedCorpus, parts: list[CorpusPart]
) -> CorpusManifest:
    chunks = cleaned.chunks
    settings = dataclasses.asdict(data)
    for name in ("version", "workers"):
        del settings[name]
    return CorpusManifest(
        dataset=data.name,
        version=version,
        recipe=recipe_hash(data),
        settings=settings,
        fingerprint=fingerprint_of(data, source),
        complete=cleaned.complete,
        documents_read=sum(chunk.documents_read for chunk in chunks),
        text_bytes_read=sum(chunk.bytes_read for chunk in chunks),
        documents=sum(part.documents for part in parts),
        text_bytes=sum(part.text_bytes for part in parts),
        stages=_stages(data, chunks, parts),
        removed=_removed(data, cleaned),
        parts=parts,
        nul_characters=sum(chunk.nul_characters for chunk in chunks),
    )
