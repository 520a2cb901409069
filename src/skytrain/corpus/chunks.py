"""Chunks, the unit of cleaning and of resuming: a cleaned chunk is stored immediately and never cleaned again."""

from __future__ import annotations

import hashlib
import json
import pickle
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import islice
from typing import Any, NamedTuple

import numpy as np

from ..config import DataConfig
from ..storage import (
    AGAIN,
    RECORD_BYTES,
    Shape,
    Store,
    damaged,
    data_of,
    is_list,
    is_mapping,
    is_text,
    is_whole,
    parse_object,
)
from .clean import Cleaned, Tally, clean
from .cut import ChunkRun, cut
from .documents import BadRecord, Document, column_at, from_parquet, to_parquet
from .files import FileSpan
from .pool import ordered, ordered_streams, ordered_threads, worker_count
from .versions import evaluation_examples

CHUNK_CHARS = 8 << 20
EXAMPLES = 3  # kept per rule
EXAMPLE_CHARS = 400
WRITES_AT_ONCE = 3


@dataclass(frozen=True)
class Chunk:
    """The header of a finished chunk. Its file holds this as JSON, then facts, signatures and texts as parquet."""

    name: str
    input_bytes: int  # read position in the input when this chunk was full; only for display
    documents_read: int
    bytes_read: int
    documents: int
    bytes: int
    tallies: dict[str, list[int]]
    removed: dict[str, int]
    examples: dict[str, list[dict[str, str]]]
    sizes: tuple[int, int, int]  # bytes of facts, signatures and parquet
    nul_characters: int = 0

    @property
    def piece(self) -> int:
        return int(self.name.partition("-")[0])


HEAD: Shape = {
    "name": is_text, "input_bytes": is_whole, "documents_read": is_whole, "bytes_read": is_whole, "documents": is_whole,
    "bytes": is_whole, "tallies": is_mapping, "removed": is_mapping, "examples": is_mapping, "sizes": is_list,
}  # fmt: skip


class ChunkWork(NamedTuple):
    """Documents to clean; None if an earlier run cleaned them."""

    name: str
    documents: list[Document] | None
    bad: list[BadRecord]
    input_bytes: int


class Made(NamedTuple):
    name: str
    file: bytes | None


class Stored(NamedTuple):
    chunk: Chunk
    is_new: bool  # made by this run


def clean_source(
    store: Store,
    folder: str,
    data: DataConfig,
    source: Any,
    needed_bytes: int | None,
    arrived: Callable[[Stored], None],
) -> Iterator[Stored]:
    """Clean the source's documents and yield the chunks in order. Finished chunks are kept in `folder` for a resume.

    `needed_bytes` estimates how much text the caller will take. Which process reads a file affects only speed, never
    the result. `arrived` is called with each chunk as soon as it is finished, possibly out of order.
    """
    examples = evaluation_examples(data)
    done = finished_chunks(store, folder)
    workers = worker_count(data.workers)
    pieces = list(source.pieces()) if hasattr(source, "pieces") else []
    if _files_apart(source, pieces, workers, needed_bytes):
        given = (data, examples, (source, store, folder, done), CHUNK_CHARS)
        yield from ordered_streams(clean_piece, enumerate(pieces), workers, setup_reader, given, arrived)
        return
    made = ordered(_clean_work, _work(data, source, done), workers, _setup, (data, examples))
    for stored in ordered_threads(lambda each: _store(store, folder, each), made, WRITES_AT_ONCE):
        arrived(stored)
        yield stored


def finished_chunks(store: Store, folder: str) -> set[str]:
    return {stat.key.rpartition("/")[2] for stat in store.list(folder)}


def _files_apart(source: Any, pieces: list[Any], workers: int, needed_bytes: int | None) -> bool:
    """Return whether each worker should read its own files.

    It should if there are enough files and all of those read first will be needed.
    """
    sizes = [getattr(piece, "size", 0) for piece in pieces]
    if workers == 1 or len(pieces) < 2 * workers or (needed_bytes and needed_bytes < 2 * sum(sizes[:workers])):
        return False
    try:
        pickle.dumps((source, pieces[0]))
    except (pickle.PicklingError, AttributeError, TypeError):  # not picklable: read in this process
        return False
    return True


def _store(store: Store, folder: str, made: Made) -> Stored:
    if made.file is None:
        return Stored(read_head(store, f"{folder}/{made.name}"), False)
    store.write(f"{folder}/{made.name}", made.file)  # atomic, so an existing file is complete
    return Stored(_unpack_head(made.file, made.name), True)


def read_facts(store: Store, folder: str, chunk: Chunk) -> np.ndarray:
    from .dedup import FACTS

    return np.frombuffer(_read_section(store, folder, chunk, 0), FACTS)


def read_signatures(store: Store, folder: str, chunk: Chunk) -> bytes:
    return _read_section(store, folder, chunk, 1)


def read_texts(store: Store, folder: str, chunk: Chunk) -> bytes:
    """Return the cleaned texts of a chunk as parquet."""
    return _read_section(store, folder, chunk, 2)


def read_documents(
    store: Store, folder: str, chunks: list[Chunk], numbers: np.ndarray
) -> Iterator[tuple[np.ndarray, list[Document]]]:
    """Yield documents by their number in the corpus, ascending; each chunk that contains any is read once."""
    for chunk, mine, rows in _chunks_of(chunks, numbers):
        yield mine, list(from_parquet(read_texts(store, folder, chunk), rows))


def read_column(
    column: str, store: Store, folder: str, chunks: Sequence[Chunk], numbers: np.ndarray
) -> Iterator[tuple[np.ndarray, list[str]]]:
    """Yield only the texts, or another column, of the documents that `read_documents` yields."""
    for chunk, mine, rows in _chunks_of(chunks, numbers):
        yield mine, column_at(read_texts(store, folder, chunk), column, rows)


def _chunks_of(chunks: Sequence[Chunk], numbers: np.ndarray) -> Iterator[tuple[Chunk, np.ndarray, list[int]]]:
    """Yield each chunk that contains some of the numbered documents, with their numbers and their rows in it."""
    first = 0
    for chunk in chunks:
        mine = numbers[np.searchsorted(numbers, first) : np.searchsorted(numbers, first + chunk.documents)]
        if len(mine):
            yield chunk, mine, (mine - first).tolist()
        first += chunk.documents


def _read_section(store: Store, folder: str, chunk: Chunk, number: int) -> bytes:
    end = sum(chunk.sizes[number:])  # offsets count from the end, because the header's length varies
    key = f"{folder}/{chunk.name}"
    stat = store.stat(key)
    assert stat is not None
    if stat.size < end:
        raise damaged(store.url(key), "it is shorter than its head says", AGAIN)
    return store.read_range(key, stat.size - end, chunk.sizes[number])


def _pack(chunk: Chunk, sections: list[bytes]) -> bytes:
    head = json.dumps(asdict(chunk)).encode()
    return len(head).to_bytes(8, "little") + head + b"".join(sections)


def _unpack_head(data: bytes, where: str) -> Chunk:
    """Return what a chunk says of itself: a JSON object after its length."""
    values = parse_object(data[8 : 8 + int.from_bytes(data[:8], "little")], where, HEAD, AGAIN)
    with data_of(where, AGAIN):
        if len(values["sizes"]) != 3 or not all(is_whole(size) and size >= 0 for size in values["sizes"]):
            raise ValueError(f"{values['sizes']!r:.60} are not three sizes")
        return Chunk(**{**values, "sizes": tuple(values["sizes"])})


def read_head(store: Store, key: str) -> Chunk:
    size = store.read_range(key, 0, 8)
    length = int.from_bytes(size, "little")
    if length > RECORD_BYTES:
        raise damaged(store.url(key), "it does not begin with a head", AGAIN)
    return _unpack_head(size + store.read_range(key, 8, length), store.url(key))


def _work(data: DataConfig, source: Any, done: set[str]) -> Iterator[ChunkWork]:
    if not hasattr(source, "pieces"):
        yield from _named(0, source.documents(), None, data, done)
        return
    for number, piece in enumerate(source.pieces()):
        yield from _piece_work(number, piece, data, source, done)


def _piece_work(number: int, piece: Any, data: DataConfig, source: Any, done: set[str]) -> Iterator[ChunkWork]:
    names = finished_piece(number, done)
    if names:  # it need not be read again
        yield from (ChunkWork(name, None, [], 0) for name in names)
    else:
        yield from _named(number, source.read(piece), piece, data, done)


def finished_piece(number: int, done: set[str]) -> list[str]:
    """Return the names of a piece's chunks in order if all of them are finished, else nothing."""
    mine = sorted(name for name in done if name.startswith(f"{number:06d}-"))
    return mine if mine and mine[-1] == f"{number:06d}-{len(mine) - 1:06d}-last" else []


def _named(
    number: int, records: Iterable[Document | BadRecord], piece: Any, data: DataConfig, done: set[str], first: int = 0
) -> Iterator[ChunkWork]:
    """Name each chunk by its piece and its number within it; `first` is the number of the records' first chunk.

    The name of a piece's last chunk ends in -last, which tells a resumed run how many chunks there are.
    """
    for i, (documents, bad, last) in enumerate(cut(records, data, CHUNK_CHARS), start=first):
        name = f"{number:06d}-{i:06d}" + ("-last" if last else "")
        position = getattr(piece, "size", 0) if last else piece.position() if hasattr(piece, "position") else 0
        yield ChunkWork(name, None if name in done else documents, bad, position)


_DATA: DataConfig
_DECONTAMINATOR: Any
_READER: tuple[Any, Store, str, set[str]]


def setup_reader(
    data: DataConfig, examples: list[str], reader: tuple[Any, Store, str, set[str]], chunk_chars: int
) -> None:
    global _READER, CHUNK_CHARS
    _READER = reader
    CHUNK_CHARS = chunk_chars
    _setup(data, examples)


def clean_piece(task: tuple[int, Any]) -> Iterator[Stored]:
    """Read, clean and store one piece; None stands for a whole source without pieces. Call `setup_reader` first."""
    source, store, folder, done = _READER
    number, piece = task
    if piece is None:
        works = _named(0, source.documents(), None, _DATA, done)
    else:
        works = _piece_work(number, piece, _DATA, source, done)
    for work in works:
        yield _store(store, folder, _clean_work(work))


def clean_run(task: tuple[int, Any], run: ChunkRun) -> Iterator[Stored]:
    """Read, clean and store some chunks of a piece, as `clean_piece` would. Call `setup_reader` first."""
    source, store, folder, done = _READER
    number, piece = task
    names = run.finished(number, done)
    if len(names) == run.chunks:
        yield from (Stored(read_head(store, f"{folder}/{name}"), False) for name in names)
        return
    items = source.read_span(piece, FileSpan(run.start, None), run.before)
    records = islice((record for record in items if record is not None), run.skip, None)
    for work in islice(_named(number, records, piece, _DATA, done, run.first), run.chunks):
        yield _store(store, folder, _clean_work(work))


def _setup(data: DataConfig, examples: list[str]) -> None:
    global _DATA, _DECONTAMINATOR
    _DATA = data
    _DECONTAMINATOR = None
    if data.cleaning.decontaminate.enabled:
        from .decontaminate import Decontaminator

        _DECONTAMINATOR = Decontaminator(examples, data.cleaning.decontaminate.ngram_words)


def _clean_work(work: ChunkWork) -> Made:
    if work.documents is None:
        return Made(work.name, None)
    documents = work.documents
    cleaned = clean(
        [document.text for document in documents],
        [document.meta.get("url") for document in documents],
        _DATA,
        _DECONTAMINATOR,
    )
    kept = [i for i, reason in enumerate(cleaned.reasons) if reason is None]
    texts = [cleaned.texts[i] for i in kept]
    facts = _facts([documents[i].id for i in kept], texts, [cleaned.sizes[i] for i in kept])
    rows = b""
    if _DATA.near_dedup.enabled:
        from .minhash import MinHash

        rows = MinHash.of(_DATA.near_dedup).signatures(texts).tobytes()
    parquet = to_parquet([documents[i] for i in kept], texts, "lz4")  # temporary: prefer speed to size
    chunk = _summary(work, cleaned, kept, (len(facts), len(rows), len(parquet)))
    return Made(work.name, _pack(chunk, [facts, rows, parquet]))


def _facts(ids: list[str], texts: list[str], sizes: list[int]) -> bytes:
    from .dedup import FACTS

    facts = np.zeros(len(ids), FACTS)
    if ids:
        facts["text"], facts["id"] = _digests(texts), _digests(ids)
        facts["bytes"] = sizes
    return facts.tobytes()


def _digests(strings: list[str]) -> np.ndarray:
    joined = b"".join(hashlib.blake2b(string.encode(), digest_size=16).digest() for string in strings)
    return np.frombuffer(joined, np.uint64).reshape(-1, 2)


def _summary(work: ChunkWork, cleaned: Cleaned, kept: list[int], sizes: tuple[int, int, int]) -> Chunk:
    documents = work.documents or []
    removed: Counter[str] = Counter()
    examples: dict[str, list[dict[str, str]]] = {}
    for bad in work.bad:
        rule = f"bad_records.{bad.kind}"
        removed[rule] += 1
        if removed[rule] <= EXAMPLES:
            examples.setdefault(rule, []).append({"id": "", "text": bad.problem[:EXAMPLE_CHARS]})
    for document, reason in zip(documents, cleaned.reasons, strict=True):
        if reason is not None:
            rule = reason.replace("min_chars_again", "min_chars")
            removed[rule] += 1
            if removed[rule] <= EXAMPLES:
                examples.setdefault(rule, []).append({"id": document.id, "text": document.text[:EXAMPLE_CHARS]})
    first = next(iter(cleaned.tallies.values()), Tally(0, 0, 0, 0))
    return Chunk(
        name=work.name,
        input_bytes=work.input_bytes,
        documents_read=len(documents) + len(work.bad),
        bytes_read=first.bytes_in,
        documents=len(kept),
        bytes=sum(cleaned.sizes[i] for i in kept),
        tallies={stage: list(tally) for stage, tally in cleaned.tallies.items()},
        removed=dict(sorted(removed.items())),
        examples=dict(sorted(examples.items())),
        sizes=sizes,
        nul_characters=sum(cleaned.texts[i].count("\0") for i in kept),
    )
