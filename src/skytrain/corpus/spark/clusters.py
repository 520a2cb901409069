"""From similar pairs to what is removed: clusters, their sizes, and how similar each document is to the kept one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from ..dedup import NEAR
from ..report import size_histogram
from .components import find_components
from .jobs import FinishedStages, SparkJobs, raised
from .place import CorpusPlace
from .similar import SETS_PER_BATCH, SimilarSearch, compare_sets, find_edges, find_needed, find_pairs, similarities
from .tables import FILES, PAIR, REMOVED, RecordTable, TableWriter, batch, records_of, runs

BY_BLOCK = "block int, a long, b long"


def find_similar(jobs: SparkJobs, stages: FinishedStages, search: SimilarSearch) -> tuple[RecordTable, dict[str, Any]]:
    """Write the removed near-duplicates, and return with them what the report says of their clusters."""
    search = replace(search, pairs=stages.table("pairs", lambda: find_pairs(jobs, search)))
    needed = stages.table("needed", lambda: find_needed(jobs, search))
    found = replace(search, needed=needed)
    edges = stages.table("edges", lambda: find_edges(jobs, found))
    links, rounds = find_components(jobs, stages, search.place, edges)
    # A cluster's first document with each other one of it: by the block of the first.
    clusters = stages.table("clusters", lambda: _by_root(jobs, search.place, links))
    of_clusters = replace(search, pairs=clusters)
    near = stages.table("near", lambda: _remove(jobs, of_clusters))
    sizes = stages.get("sizes", lambda: _sizes(jobs, of_clusters))
    facts = {"pairs": search.pairs.rows, "compared": needed.rows, "similar": edges.rows, "rounds": rounds}
    return near, {**facts, "clusters": sum(sizes.values()), "cluster_sizes": sizes, "beyond": near.total}


def _by_root(jobs: SparkJobs, place: CorpusPlace, links: RecordTable) -> RecordTable:
    if not links.files:
        return RecordTable("clusters", ())
    shared = jobs.share((place, links))
    frame = jobs.tasks(_links_by_root, shared, len(links.files), BY_BLOCK)
    return jobs.table_by_block("clusters", "clusters", PAIR, frame, jobs.share(place), unique=True)


def _links_by_root(shared: tuple[CorpusPlace, RecordTable], task: int) -> Iterator[Any]:
    place, links = shared
    only = RecordTable(links.name, (links.files[task],))
    for found in only.read(place, only.files[0][0], PAIR):
        roots = found["b"].copy()
        documents = found["a"].copy()
        yield batch(block=place.block_of(roots), a=roots, b=documents)


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
    for blocks, kept, removed, found in similarities(clusters.place, batches):
        fates = np.full(len(removed), NEAR, np.uint8)
        records = records_of(REMOVED, number=removed, fate=fates, twin=kept)
        for block, part in runs(blocks):
            yield from writer.add(block, records[part], int((found[part] < clusters.min_similarity).sum()))
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
