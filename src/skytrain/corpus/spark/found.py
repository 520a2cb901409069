"""What Spark found, by id: tasks read the ids of the documents concerned, the driver writes the files of both engines."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from ...storage import ScratchFolder, read_data
from ..chunks import read_column
from ..duplicates import REMOVED, DocumentIds, FoundDuplicates, write_duplicates
from ..near import COMPARED
from .jobs import FinishedStages, SparkJobs, raised
from .place import CorpusPlace
from .tables import NUMBER, RecordTable, batch

NUMBERS = "block int, number long"
NO_TABLE = RecordTable("", ())


@dataclass(frozen=True)
class FoundTables:
    """The tables of a search that is finished."""

    place: CorpusPlace
    removed: tuple[RecordTable, ...]
    needed: RecordTable | None = None  # documents of compared pairs; None without near-duplicates
    compared: RecordTable | None = None
    concerned: RecordTable = NO_TABLE  # every document whose id is written


def write_found(jobs: SparkJobs, stages: FinishedStages, folder: str, found: FoundTables) -> None:
    """Write the removed documents and the compared pairs into the corpus' folder, as the local engine does.

    The driver holds 16 bytes for each document that is removed or compared; their ids pass through a file on its disk.
    """
    place = found.place
    blocks = len(place.blocks) - 1
    concerned = stages.table("concerned", lambda: _find_concerned(jobs, found, blocks))
    by_block = FoundTables(place=place, removed=(), concerned=concerned)
    for _ in raised(jobs.results("ids", _write_ids, jobs.share(by_block), len(concerned.blocks()))):
        pass
    numbers = [concerned.read_all(place, block, NUMBER)["number"] for block in concerned.blocks()]
    with ScratchFolder("skytrain-ids") as scratch:
        ids = DocumentIds(scratch / "ids", np.concatenate([np.empty(0, np.int64), *numbers]), _read_ids(by_block))
        write_duplicates(
            place.store, folder, FoundDuplicates(_removed(found), _compared(found) if found.compared else None, ids)
        )


def _find_concerned(jobs: SparkJobs, found: FoundTables, blocks: int) -> RecordTable:
    frame = jobs.tasks(_concerned, jobs.share(found), blocks, NUMBERS)
    return jobs.table_by_block("concerned", "concerned", NUMBER, frame, jobs.share(found.place), unique=True)


def _concerned(found: FoundTables, block: int) -> Iterator[Any]:
    place = found.place
    for table in found.removed:
        for removed in table.read(place, block, REMOVED):
            numbers = np.concatenate([removed["number"], removed["twin"]])
            yield batch(block=place.block_of(numbers), number=numbers)
    for needed in found.needed.read(place, block, NUMBER) if found.needed else ():
        numbers = np.ascontiguousarray(needed["number"])
        yield batch(block=place.block_of(numbers), number=numbers)


def _write_ids(found: FoundTables, task: int) -> None:
    """Store the ids of a block's documents: the length of each as int64, then all of them."""
    place = found.place
    block = found.concerned.blocks()[task]
    numbers = found.concerned.read_all(place, block, NUMBER)["number"]
    ids: list[bytes] = []
    for _, some in read_column("id", place.store, place.clean, place.chunks, numbers):
        ids += [each.encode() for each in some]
    lengths = np.array([len(each) for each in ids], np.int64)
    place.store.write(_ids_key(place, block), lengths.tobytes() + b"".join(ids))


def _read_ids(found: FoundTables) -> Iterator[list[str]]:
    place = found.place
    for block in found.concerned.blocks():
        stored = read_data(place.store, _ids_key(place, block))
        count = found.concerned.read_all(place, block, NUMBER).size
        ends = np.cumsum(np.frombuffer(stored, np.int64, count)) + 8 * count
        starts = [8 * count, *ends[:-1].tolist()]
        yield [stored[start:end].decode() for start, end in zip(starts, ends.tolist(), strict=True)]


def _removed(found: FoundTables) -> Iterator[np.ndarray]:
    for block in sorted({block for table in found.removed for block in table.blocks()}):
        records = np.concatenate([table.read_all(found.place, block, REMOVED) for table in found.removed])
        yield records[np.argsort(records["number"])]


def _compared(found: FoundTables) -> Iterator[np.ndarray]:
    assert found.compared is not None
    for block in found.compared.blocks():
        yield from found.compared.read(found.place, block, COMPARED)


def _ids_key(place: CorpusPlace, block: int) -> str:
    return f"{place.work}/ids/{block:06d}"
