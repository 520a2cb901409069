"""Connected components on Spark: large stars and small stars in turn, until no link changes.

A few links are joined in one task. Larger sets are first joined within each task, which leaves one link per document;
then documents are linked to ever smaller ones, as in "Connected Components in MapReduce and Beyond" (Kiveris et al.,
2014).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from ..near import COMPARED
from .jobs import FinishedStages, SparkJobs
from .place import CorpusPlace
from .streams import LargeStars, SmallStars, checksum, contract
from .tables import FILES, PAIR, RecordTable, TableWriter, batch, columns_of, records_of

LINKS_PER_TASK = 4_000_000  # 64 MB
LINKS = "node long, neighbour long"


@dataclass(frozen=True)
class LinkFiles:
    """The links of a table, grouped into the files that each task reads."""

    place: CorpusPlace
    name: str
    table: RecordTable
    groups: tuple[tuple[int, ...], ...]  # the table's files, by task
    min_similarity: float | None  # of compared pairs, the ones that are links; None: every record is one

    @classmethod
    def of(
        cls,
        place: CorpusPlace,
        name: str,
        table: RecordTable,
        links_per_task: int,
        min_similarity: float | None = None,
    ) -> LinkFiles:
        groups: list[list[int]] = []
        filled = links_per_task
        for number, (_, _, rows) in enumerate(table.files):
            if filled + rows > links_per_task:
                groups.append([])
                filled = 0
            groups[-1].append(number)
            filled += rows
        return cls(place=place, name=name, table=table, groups=tuple(map(tuple, groups)), min_similarity=min_similarity)

    def read(self, task: int) -> Iterator[np.ndarray]:
        for number in self.groups[task]:
            only = RecordTable(self.table.name, (self.table.files[number],))
            if self.min_similarity is None:
                yield from only.read(self.place, only.files[0][0], PAIR)
                continue
            for compared in only.read(self.place, only.files[0][0], COMPARED):
                similar = compared[compared["similarity"] >= self.min_similarity]
                yield records_of(PAIR, a=similar["a"], b=similar["b"])


def find_components(
    jobs: SparkJobs,
    stages: FinishedStages,
    place: CorpusPlace,
    compared: RecordTable,
    min_similarity: float,
    links_per_task: int = LINKS_PER_TASK,
) -> tuple[RecordTable, int]:
    """Return a table of (document, first document of its cluster), and in how many rounds it was found.

    The links are the compared pairs that are similar enough.
    """
    files = LinkFiles.of(place, "links-00", compared, links_per_task, min_similarity)
    links = stages.table("links-00", lambda: _contract(jobs, files))
    rounds = 1
    while len(files.groups) > 1 or rounds > 1:
        name = f"links-{rounds:02d}"
        before = links
        files = LinkFiles.of(place, name, links, links_per_task)
        links = stages.table(name, partial(_star_round, jobs, files))
        rounds += 1
        if (links.rows, links.total) == (before.rows, before.total):
            break
    return links, rounds


def _contract(jobs: SparkJobs, files: LinkFiles) -> RecordTable:
    if not files.groups:
        return RecordTable(files.name, ())
    return jobs.table("clusters", files.name, jobs.tasks(_contracted, jobs.share(files), len(files.groups), FILES))


def _star_round(jobs: SparkJobs, files: LinkFiles) -> RecordTable:
    shared = jobs.share(files)
    both = jobs.tasks(_both_ways, shared, len(files.groups), LINKS)
    large = jobs.sorted_by(both, "node", "node", "neighbour").mapInArrow(partial(_stars, LargeStars), LINKS)
    small = jobs.sorted_by(large, "node", "node", "neighbour").mapInArrow(partial(_write_stars, shared), FILES)
    return jobs.table("clusters", files.name, small)


def _contracted(files: LinkFiles, task: int) -> Iterator[Any]:
    records = np.concatenate([np.empty(0, PAIR), *files.read(task)])
    links = contract(np.stack([records["a"], records["b"]], axis=1))
    yield from _written(files, task, links[:, 0].copy(), links[:, 1].copy(), TableWriter(files.place, files.name, PAIR))


def _both_ways(files: LinkFiles, task: int) -> Iterator[Any]:
    for links in files.read(task):
        a = links["a"]
        b = links["b"]
        yield batch(node=np.concatenate([a, b]), neighbour=np.concatenate([b, a]))


def _stars(kind: type[LargeStars], batches: Iterable[Any]) -> Iterator[Any]:
    stars = kind()
    for nodes, neighbours in columns_of(batches, "node", "neighbour"):
        node, neighbour = stars.links(nodes, neighbours)
        yield batch(node=node, neighbour=neighbour)


def _write_stars(shared: Any, batches: Iterable[Any]) -> Iterator[Any]:
    from pyspark import TaskContext

    context = TaskContext.get()
    files = shared.value
    assert context is not None
    writer = TableWriter(files.place, files.name, PAIR)
    stars = SmallStars()
    for nodes, neighbours in columns_of(batches, "node", "neighbour"):
        yield from _written(files, context.partitionId(), *stars.links(nodes, neighbours), writer, last=False)
    yield from writer.finish()


def _written(
    files: LinkFiles, block: int, nodes: np.ndarray, roots: np.ndarray, writer: TableWriter, last: bool = True
) -> Iterator[Any]:
    total = checksum(np.ascontiguousarray(nodes), np.ascontiguousarray(roots))
    signed = int(np.array([total], np.uint64).view(np.int64)[0])
    yield from writer.add(block, records_of(PAIR, a=nodes, b=roots), signed)
    if last:
        yield from writer.finish()
