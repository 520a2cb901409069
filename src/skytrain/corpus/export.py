"""Writes the documents of a corpus as parquet for other tools: one file for each part, in order."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal

from ..config import MissingExtra, SkytrainError, plural
from ..storage import Store
from .documents import tables_to_parquet
from .files import buffered_ranges
from .manifest import CorpusManifest, CorpusPart, part_body
from .progress import ShowProgress

Compression = Literal["snappy", "zstd", "none"]
STAMP = b"skytrain"  # metadata key under which a file says which part it was made from


def export_documents(
    store: Store,
    corpus: CorpusManifest,
    target: Store,
    compression: Compression,
    *,
    overwrite: bool = False,
    progress: ShowProgress | None = None,
) -> Iterator[str]:
    """Write columns id, text, source and meta (JSON) below `target`, and yield the URL of each file.

    One part is in memory at a time, and each file is written atomically. Files that an interrupted call finished are
    kept; any other parquet file there is an error, or deleted with `overwrite`.
    """
    missing = _prepare_target(corpus, target, compression, overwrite)
    total = sum(part.text_bytes for part in corpus.parts) / 1e6
    done = 0.0
    for part in corpus.parts:
        if part.name in missing:
            target.write(part.name, _encode(part_body(store, corpus.folder, part), compression, _stamp(corpus, part)))
        done += part.text_bytes / 1e6
        if progress:
            progress("export", done, total, part.name)
        yield target.url(part.name)


def _prepare_target(corpus: CorpusManifest, target: Store, compression: Compression, overwrite: bool) -> set[str]:
    """Return the names of the files that are still to be written."""
    wanted = {part.name: _stamp(corpus, part) for part in corpus.parts}
    there = [stat for stat in target.list() if stat.key.endswith(".parquet")]
    same = {
        stat.key
        for stat in there
        if stat.key in wanted and _made_of(target, stat.key, stat.size) == (wanted[stat.key], compression)
    }
    others = [stat.key for stat in there if stat.key not in same]
    if others and not overwrite:
        raise SkytrainError(
            f"{target.url('')} holds {plural(len(others), 'other parquet file')}: {', '.join(others[:3])}\n"
            "  choose another folder, or replace them with --overwrite"
        )
    for name in others:
        target.delete(name)
    return set(wanted) - same


def _stamp(corpus: CorpusManifest, part: CorpusPart) -> bytes:
    return f"{corpus.dataset}@{corpus.version} {part.name} {part.sha256}".encode()


def _made_of(target: Store, key: str, size: int) -> tuple[bytes, str] | None:
    """Return the stamp and the compression of a file that an earlier export wrote; None for any other file."""
    import pyarrow
    import pyarrow.parquet

    try:
        stream = buffered_ranges(lambda start, length: target.read_range(key, start, length), size)
        metadata = pyarrow.parquet.ParquetFile(pyarrow.PythonFile(stream, "r")).metadata
    except (pyarrow.ArrowException, OSError):
        return None
    codec = metadata.row_group(0).column(0).compression.lower()
    return (metadata.metadata or {}).get(STAMP, b""), "none" if codec == "uncompressed" else codec


def _encode(body: bytes, compression: Compression, stamp: bytes) -> bytes:
    """Recompress a part, row group by row group."""
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        raise MissingExtra("pyarrow", "data") from None
    part = pyarrow.parquet.ParquetFile(pyarrow.BufferReader(body))
    groups: Iterator[Any] = (part.read_row_group(i) for i in range(part.num_row_groups))
    return tables_to_parquet(groups, compression, {STAMP: stamp})
