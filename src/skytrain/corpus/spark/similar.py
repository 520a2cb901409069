"""Near-duplicates on Spark: bands propose pairs, signatures rule most out, sets of shingles decide, clusters follow.

The pairs are those of the local engine: pairs of a bucket by rank; of these, the ones whose documents both belong to a
pair that the signatures do not rule out; of these, the ones whose Jaccard similarity reaches the threshold.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from ..chunks import read_signatures
from ..dedup import KEPT, NEAR
from ..duplicates import REMOVED
from ..minhash import has_words, jaccard_of
from ..near import COMPARED, least_equal
from ..report import size_histogram
from .components import find_components
from .jobs import FinishedStages, SparkJobs, raised
from .place import CorpusPlace, DocumentReader
from .tables import FILES, NUMBER, PAIR, RecordTable, TableWriter, batch, columns_of, records_of, runs

BANDED = "hash long, band short, number long"
BY_BLOCK = "block int, a long, b long"
WITH_CONTENT = "block int, b long, a long, content binary"
NUMBERS = "block int, number long"
BATCH_BYTES = 4 << 20
SETS_PER_BATCH = 128  # sets are as long as their documents: Spark cuts batches by rows only


NO_TABLE = RecordTable("", ())


@dataclass(frozen=True)
class SimilarSearch:
    """The tables of one search that have been made so far."""

    place: CorpusPlace
    removed: RecordTable  # equal documents
    min_similarity: float
    pairs: RecordTable = NO_TABLE
    needed: RecordTable | None = None  # None: all documents


class FoundSimilar(NamedTuple):
    """The tables of removed and of compared documents, and what the report says about clusters."""

    near: RecordTable
    needed: RecordTable
    compared: RecordTable
    facts: dict[str, Any]


def find_similar(jobs: SparkJobs, stages: FinishedStages, search: SimilarSearch) -> FoundSimilar:
    """Write the removed near-duplicates and every pair that was compared."""
    search = replace(search, pairs=stages.table("pairs", lambda: find_pairs(jobs, search)))
    needed = stages.table("needed", lambda: find_needed(jobs, search))
    with_needed = replace(search, needed=needed)
    compared = stages.table("compared", lambda: compare_pairs(jobs, with_needed))
    links, rounds = find_components(jobs, stages, search.place, compared, search.min_similarity)
    # Pairs of a cluster's first document with each of its others, by the block of the first.
    clusters = stages.table("clusters", lambda: _by_root(jobs, search.place, links))
    of_clusters = replace(search, pairs=clusters)
    near = stages.table("near", lambda: _remove(jobs, of_clusters))
    sizes = stages.get("sizes", lambda: _sizes(jobs, of_clusters))
    facts = {"pairs": search.pairs.rows, "compared": compared.rows, "similar": compared.total, "rounds": rounds}
    facts |= {"clusters": sum(sizes.values()), "cluster_sizes": sizes, "beyond": near.total}
    return FoundSimilar(near, needed, compared, facts)


def find_pairs(jobs: SparkJobs, search: SimilarSearch) -> RecordTable:
    """Write the pairs that share a bucket, each once, by the block of their first document."""
    shared = jobs.share(search)
    place = search.place
    bands = jobs.tasks(_bands, shared, len(place.blocks) - 1, BANDED)
    buckets = jobs.sorted_by(bands, "hash", "hash", "band", "number")
    pairs = buckets.mapInArrow(partial(_bucket_pairs, shared), BY_BLOCK)
    return jobs.table_by_block("pairs", "pairs", PAIR, pairs, jobs.share(place), unique=True)


def find_needed(jobs: SparkJobs, search: SimilarSearch) -> RecordTable:
    """Write the documents of pairs whose signatures do not rule out similarity."""
    shared = jobs.share(search)
    frame = jobs.tasks(partial(_pairs_of_block, _signature_content), shared, len(search.pairs.blocks()), WITH_CONTENT)
    compared = jobs.sorted_by(frame, "block", "block", "b", "a").mapInArrow(partial(_estimate, shared), NUMBERS)
    return jobs.table_by_block("needed", "needed", NUMBER, compared, jobs.share(search.place), unique=True)


def compare_pairs(jobs: SparkJobs, search: SimilarSearch) -> RecordTable:
    """Write the pairs with their similarity, by the block of the second document; its total counts similar ones."""
    shared = jobs.share(search)
    compared = compare_sets(jobs, shared, len(search.pairs.blocks()), FILES, partial(_write_compared, shared))
    with jobs.batch_rows(SETS_PER_BATCH):
        return jobs.table("verify", "compared", compared)


def compare_sets(
    jobs: SparkJobs, shared: Any, blocks: int, schema: str, compare: Callable[[Iterable[Any]], Iterator[Any]]
) -> Any:
    """Return a frame of what `compare` yields for pairs with the first document's set, by the second's block."""
    frame = jobs.tasks(partial(_pairs_of_block, _set_content), shared, blocks, WITH_CONTENT)
    return jobs.sorted_by(frame, "block", "block", "b", "a").mapInArrow(compare, schema)


def similarities(place: CorpusPlace, batches: Iterable[Any]) -> Iterator[tuple[np.ndarray, ...]]:
    """Yield block, a, b and Jaccard similarity of each pair, as arrays sorted by b; `content` is the set of a."""
    reader = DocumentReader(place)
    for each in batches:
        if not each.num_rows:
            continue
        ((blocks, a, b),) = columns_of([each], "block", "a", "b")
        contents = each.column(each.schema.get_field_index("content"))
        similarity = np.empty(len(b), np.float64)
        for part, sets in reader.sets(b):
            for i, other in zip(range(part.start, part.stop), sets, strict=True):
                similarity[i] = jaccard_of(np.frombuffer(contents[i].as_buffer(), np.uint64), other)
        yield blocks, a, b, similarity


def _bands(search: SimilarSearch, block: int) -> Iterator[Any]:
    place = search.place
    minhash = place.minhash
    fates = fates_of(place, [search.removed], block)
    first = place.first_of(block)
    for i in place.chunks_of(block):
        chunk = place.chunks[i]
        rows = np.frombuffer(read_signatures(place.store, place.clean, chunk), np.uint32).reshape(-1, minhash.hashes)
        start = int(place.firsts[i]) - first
        use = np.flatnonzero((fates[start : start + chunk.documents] == KEPT) & has_words(rows))
        hashes = minhash.band_hashes(rows[use]).view(np.int64)
        bands = np.tile(np.arange(minhash.bands, dtype=np.int16), len(use))
        yield batch(hash=hashes.reshape(-1), band=bands, number=np.repeat(place.firsts[i] + use, minhash.bands))


def fates_of(place: CorpusPlace, tables: list[RecordTable], block: int) -> np.ndarray:
    """Return the fate of each document of a block."""
    first = place.first_of(block)
    fates = np.zeros(place.first_of(block + 1) - first, np.uint8)
    for table in tables:
        for removed in table.read(place, block, REMOVED):
            fates[removed["number"] - first] = removed["fate"]
    return fates


def _bucket_pairs(shared: Any, batches: Iterable[Any]) -> Iterator[Any]:
    from .streams import BucketPairs

    place = shared.value.place
    buckets = BucketPairs()
    for hashes, bands, numbers in columns_of(batches, "hash", "band", "number"):
        pairs = buckets.pairs(hashes, bands, numbers)
        if len(pairs):
            yield batch(block=place.block_of(pairs[:, 0]), a=pairs[:, 0].copy(), b=pairs[:, 1].copy())


def _pairs_of_block(
    content_of: Callable[[DocumentReader, np.ndarray], Iterator[tuple[slice, list[bytes]]]],
    search: SimilarSearch,
    number: int,
) -> Iterator[Any]:
    """Yield the pairs of a block with `content_of` their first document, for the block of the second."""
    place = search.place
    block = search.pairs.blocks()[number]
    reader = DocumentReader(place)
    needed = search.needed.read_all(place, block, NUMBER)["number"] if search.needed else None
    for pairs in search.pairs.read(place, block, PAIR):
        if needed is not None:
            pairs = pairs[_among(pairs["a"], needed)]
        a = np.ascontiguousarray(pairs["a"])
        b = np.ascontiguousarray(pairs["b"])
        for part, contents in content_of(reader, a) if len(a) else ():
            size = max(1, max(map(len, contents)))
            step = max(1, BATCH_BYTES // size)
            for start in range(0, len(contents), step):
                rows = slice(part.start + start, min(part.start + start + step, part.stop))
                yield batch(block=place.block_of(b[rows]), b=b[rows], a=a[rows], content=contents[start : start + step])


def _among(numbers: np.ndarray, ascending: np.ndarray) -> np.ndarray:
    if not len(ascending):
        return np.zeros(len(numbers), np.bool_)
    places = np.minimum(np.searchsorted(ascending, numbers), len(ascending) - 1)
    return ascending[places] == numbers


def _signature_content(reader: DocumentReader, numbers: np.ndarray) -> Iterator[tuple[slice, list[bytes]]]:
    for _, part in reader.by_chunk(numbers):
        yield part, [row.tobytes() for row in reader.signatures(numbers[part])]


def _set_content(reader: DocumentReader, numbers: np.ndarray) -> Iterator[tuple[slice, list[bytes]]]:
    for part, sets in reader.sets(numbers):
        yield part, [each.tobytes() for each in sets]


def _estimate(shared: Any, batches: Iterable[Any]) -> Iterator[Any]:
    search: SimilarSearch = shared.value
    reader = DocumentReader(search.place)
    hashes = search.place.minhash.hashes
    least = least_equal(search.min_similarity, hashes)
    for each in batches:
        if not each.num_rows:
            continue
        ((a, b),) = columns_of([each], "a", "b")
        contents = each.column(each.schema.get_field_index("content")).to_pylist()
        theirs = np.frombuffer(b"".join(contents), np.uint32).reshape(-1, hashes)
        close = (theirs == reader.signatures(b)).sum(axis=1) >= least
        numbers = np.unique(np.concatenate([a[close], b[close]]))
        yield batch(block=search.place.block_of(numbers), number=numbers)


def _write_compared(shared: Any, batches: Iterable[Any]) -> Iterator[Any]:
    search: SimilarSearch = shared.value
    writer = TableWriter(search.place, "compared", COMPARED)
    for blocks, a, b, similarity in similarities(search.place, _both_needed(search, batches)):
        records = records_of(COMPARED, a=a, b=b, similarity=similarity)
        for block, part in runs(blocks):
            yield from writer.add(block, records[part], int((similarity[part] >= search.min_similarity).sum()))
    yield from writer.finish()


def _both_needed(search: SimilarSearch, batches: Iterable[Any]) -> Iterator[Any]:
    import pyarrow as pa

    assert search.needed is not None
    block = -1
    needed = np.empty(0, np.int64)
    for each in batches:
        keep = np.zeros(each.num_rows, np.bool_)
        for blocks, b in columns_of([each], "block", "b"):
            for i in np.unique(blocks).tolist():
                if i != block:
                    block = i
                    needed = search.needed.read_all(search.place, i, NUMBER)["number"]
                mine = blocks == i
                keep[mine] = _among(b[mine], needed)
        yield each.filter(pa.array(keep))


def _by_root(jobs: SparkJobs, place: CorpusPlace, links: RecordTable) -> RecordTable:
    if not links.files:
        return RecordTable("clusters", ())
    shared = jobs.share((place, links))
    frame = jobs.tasks(_links_by_root, shared, len(links.files), BY_BLOCK)
    return jobs.table_by_block("clusters", "clusters", PAIR, frame, jobs.share(place), unique=True)


def _links_by_root(shared: tuple[CorpusPlace, RecordTable], task: int) -> Iterator[Any]:
    place, links = shared
    only = RecordTable(links.name, (links.files[task],))
    for pairs in only.read(place, only.files[0][0], PAIR):
        roots = pairs["b"].copy()
        yield batch(block=place.block_of(roots), a=roots, b=pairs["a"].copy())


def _remove(jobs: SparkJobs, clusters: SimilarSearch) -> RecordTable:
    if not clusters.pairs.files:
        return RecordTable("near", ())
    shared = jobs.share(clusters)
    frame = compare_sets(jobs, shared, len(clusters.pairs.blocks()), FILES, partial(_write_removed, shared))
    with jobs.batch_rows(SETS_PER_BATCH):
        return jobs.table("remove", "near", frame)


def _write_removed(shared: Any, batches: Iterable[Any]) -> Iterator[Any]:
    clusters: SimilarSearch = shared.value
    writer = TableWriter(clusters.place, "near", REMOVED)
    for blocks, kept, removed, similarity in similarities(clusters.place, batches):
        fates = np.full(len(removed), NEAR, np.uint8)
        records = records_of(REMOVED, number=removed, fate=fates, twin=kept, similarity=similarity)
        for block, part in runs(blocks):
            yield from writer.add(block, records[part], int((similarity[part] < clusters.min_similarity).sum()))
    yield from writer.finish()


def _sizes(jobs: SparkJobs, clusters: SimilarSearch) -> dict[str, int]:
    total: Counter[str] = Counter()
    shared = jobs.share(clusters)
    for histogram in raised(jobs.results("sizes", _block_sizes, shared, len(clusters.pairs.blocks()))):
        total.update(histogram)
    return dict(total)


def _block_sizes(clusters: SimilarSearch, task: int) -> dict[str, int]:
    block = clusters.pairs.blocks()[task]
    sizes: Counter[int] = Counter()  # of clusters, by their first document
    for pairs in clusters.pairs.read(clusters.place, block, PAIR):
        roots, counts = np.unique(pairs["a"], return_counts=True)
        sizes.update(dict(zip(roots.tolist(), counts.tolist(), strict=True)))
    return size_histogram(np.array(list(sizes.values()), np.int64) + 1)
