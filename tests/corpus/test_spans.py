"""A large file that several tasks read gives what one reader gives, wherever it is split."""

from __future__ import annotations

import dataclasses
import json
import random
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from skytrain.config import SkytrainError, compose
from skytrain.corpus import BadRecord, Document, chunks
from skytrain.corpus.chunks import clean_source
from skytrain.corpus.cut import CutPlan, cut
from skytrain.corpus.sources import JsonLines, ParquetFiles, TextFiles
from skytrain.corpus.sources.base import SpannedSource
from skytrain.corpus.spark.cleaning import SparkCleaning
from skytrain.storage import open_store

SEPARATOR = "<|endoftext|>"


def words(generator: random.Random) -> str:
    return " ".join(f"wörd{generator.randrange(1000)}" for _ in range(generator.randrange(40)))


def json_lines(path: Path, generator: random.Random) -> SpannedSource:
    """A byte order mark, CRLF, empty lines, broken lines, and a line longer than a span."""
    lines = [json.dumps({"text": words(generator) * generator.choice([1, 1, 1, 30])}) for _ in range(300)]
    lines = [generator.choice([line] * 9 + ["", "{broken", "  "]) for line in lines]
    ends = [generator.choice(["\n", "\r\n"]) for _ in lines]
    body = "".join(line + end for line, end in zip(lines, ends, strict=True)).removesuffix("\n")
    path.write_bytes(b"\xef\xbb\xbf" + body.encode())
    return JsonLines(str(path))


def parquet(path: Path, generator: random.Random) -> SpannedSource:
    """Row groups of any size, some of them without rows, and rows without a text."""
    kinds = pa.schema([("text", pa.string()), ("n", pa.int64())])
    with pq.ParquetWriter(path, kinds) as writer:
        for size in (0, 1, 40, 0, 0, 70, 3, 90, 0):
            texts = [generator.choice([words(generator), words(generator), None]) for _ in range(size)]
            writer.write_table(pa.table({"text": texts, "n": list(range(size))}, kinds))
    return ParquetFiles(str(path))


def separated_text(path: Path, generator: random.Random) -> SpannedSource:
    """Separators at both ends, several in a row, and bytes that are no UTF-8."""
    lines = [generator.choice([words(generator)] * 3 + [SEPARATOR]) for _ in range(400)]
    body = "\n".join([SEPARATOR, *lines, SEPARATOR, ""]).encode()
    path.write_bytes(body[:3000] + b"\xff" + body[3000:])
    return TextFiles(str(path), separator=SEPARATOR)


SOURCES = [json_lines, parquet, separated_text]


def read_in_spans(source: SpannedSource, size: int) -> list[Document | BadRecord]:
    (file,) = source.pieces()
    found: list[Document | BadRecord] = []
    before = 0
    for span in source.spans(file, size):
        items = list(source.read_span(file, span, before))
        before += len(items)
        found += [item for item in items if item is not None]
    return found


@pytest.mark.parametrize("write", SOURCES)
def test_spans_of_any_size_hold_each_record_once_with_its_number(
    write: Callable[[Path, random.Random], SpannedSource], tmp_path: Path
) -> None:
    source = write(tmp_path / "file", random.Random(3))
    (file,) = source.pieces()
    whole = list(source.read(file))
    assert any(isinstance(each, BadRecord) for each in whole)
    for size in (101, 500, 2001, 10_000, file.size - 1, file.size, 10 * file.size):
        assert read_in_spans(source, size) == whole, size
    assert len(source.spans(file, 2001)) > 2
    assert len(source.spans(file, file.size)) == 1


def test_a_compressed_file_is_read_from_its_start(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl.gz"
    path.write_bytes(pa.Codec("gzip").compress(b'{"text": "x"}\n' * 50, asbytes=True))
    source = JsonLines(str(path))
    assert len(source.spans(source.pieces()[0], 10)) == 1


@pytest.mark.parametrize("seed", range(5))
def test_chunks_are_planned_from_sizes_as_the_reader_cuts_them(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("skytrain.corpus.cut.CHUNK_DOCUMENTS", 9)
    generator = random.Random(seed)
    sizes = [generator.choice([0, 1, 30, 200, 700]) for _ in range(500)]
    data = dataclasses.replace(compose([]).config.data, bad_records="skip")
    records = [Document(str(i), "x" * size, "s") if size else BadRecord("json", "") for i, size in enumerate(sizes)]
    ends = np.cumsum([len(documents) + len(bad) for documents, bad, _ in cut(records, data, 1000)])
    plan, first, starts = CutPlan(1000), 0, []
    while first < len(sizes):
        part = np.array(sizes[first : first + generator.randrange(40)], np.int64)
        starts += [first + start for start in plan.starts(part)]
        first += len(part)
    assert starts == ends[:-1].tolist()
    assert len(starts) > 40


class TasksInOrder:
    """Runs the tasks of the Spark engine in this process, one after another; the slow tests run them on Spark."""

    cores = 1

    def __init__(self, split_bytes: int) -> None:
        self.split_bytes, self.stages = split_bytes, dict[str, int]()

    def share(self, value: Any) -> Any:
        return SimpleNamespace(value=value)

    def results(self, stage: str, function: Callable[[Any, int], Any], shared: Any, count: int) -> list[Any]:
        self.stages[stage] = self.stages.get(stage, 0) + count
        return [function(shared.value, number) for number in range(count)]


def cleaned_locally(folder: Path, data: Any, source: SpannedSource) -> dict[str, bytes]:
    store = open_store(str(folder))
    for _ in clean_source(store, "c/clean", data, source, None, lambda _: None):
        pass
    return chunk_bodies(store)


def chunk_bodies(store: Any) -> dict[str, bytes]:
    """Each chunk without its header, whose position in the input is only for display."""
    found = {}
    for stat in store.list("c/clean"):
        body = store.read(stat.key)
        found[stat.key] = body[8 + int.from_bytes(body[:8], "little") :]
    return found


@pytest.fixture
def data(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(chunks, "CHUNK_CHARS", 3000)
    return dataclasses.replace(compose(["data.min_chars=1"]).config.data, bad_records="skip", workers=1)


@pytest.mark.parametrize("write", SOURCES)
def test_tasks_that_share_a_file_write_the_chunks_of_one_reader(
    write: Callable[[Path, random.Random], SpannedSource], data: Any, tmp_path: Path
) -> None:
    source = write(tmp_path / "file", random.Random(4))
    alone = cleaned_locally(tmp_path / "alone", data, source)
    assert len(alone) > 5
    for size in (2000, 9000):
        store, jobs = open_store(str(tmp_path / str(size))), TasksInOrder(size)
        found, is_complete = SparkCleaning(jobs, store, "c", data, source).until(float("inf"))
        assert is_complete
        assert jobs.stages["count"] > 1
        assert chunk_bodies(store) == alone
        assert [f"c/clean/{chunk.name}" for chunk in found] == sorted(alone)
        again = TasksInOrder(size)
        store.delete(sorted(alone)[3])
        SparkCleaning(again, store, "c", data, source).until(float("inf"))
        assert again.stages.get("count", 0) == 0  # counts of an earlier attempt are used again
        assert chunk_bodies(store) == alone


def test_a_target_takes_the_same_chunks_of_a_shared_file_and_counts_no_more_than_it_needs(
    data: Any, tmp_path: Path
) -> None:
    source = json_lines(tmp_path / "file", random.Random(4))
    store, jobs = open_store(str(tmp_path / "store")), TasksInOrder(2500)
    all_chunks, _ = SparkCleaning(TasksInOrder(10**9), open_store(str(tmp_path / "a")), "c", data, source).until(1e9)
    cleaning = SparkCleaning(jobs, store, "c", data, source)
    for goal in (3000, 20_000, 10**9):
        found, is_complete = cleaning.until(goal)
        assert [chunk.name for chunk in found] == [chunk.name for chunk in all_chunks][: len(found)]
        assert sum(chunk.bytes for chunk in found[:-1]) < goal
        assert is_complete == (goal == 10**9) == (len(found) == len(all_chunks))
        if goal == 3000:
            assert jobs.stages["count"] < len(source.spans(source.pieces()[0], 2500)) / 2


def test_a_bad_record_stops_a_shared_file_where_it_stops_one_reader(data: Any, tmp_path: Path) -> None:
    source = json_lines(tmp_path / "file", random.Random(4))
    strict = dataclasses.replace(data, bad_records="stop")
    with pytest.raises(SkytrainError) as one:
        cleaned_locally(tmp_path / "alone", strict, source)
    with pytest.raises(SkytrainError) as shared:
        SparkCleaning(TasksInOrder(20_000), open_store(str(tmp_path / "s")), "c", strict, source).until(float("inf"))
    assert str(shared.value) == str(one.value)


def test_odd_files_are_told_alike_by_both_engines(data: Any, tmp_path: Path) -> None:
    folder, line = tmp_path / "in", b'{"text": "one two three"}\n'
    folder.mkdir()
    gzip_, zstd = (lambda body, codec=codec: pa.Codec(codec).compress(body, asbytes=True) for codec in ("gzip", "zstd"))
    bodies = {
        "members.jsonl.gz": gzip_(line) + gzip_(b"") + gzip_(line),
        "garbage.jsonl.gz": gzip_(line) + b"no gzip",
        "cut.jsonl.zst": zstd(line * 500)[:-5],
        "frames.jsonl.zst": zstd(line) + zstd(line),
        "crlf.jsonl": line.replace(b"\n", b"\r\n") * 400,
        "zeros.jsonl": line + b"\0" * 5000 + b"\n" + line,
        "long.jsonl": b'{"text": "' + b"word " * 50_000 + b'"}\n' + line,
        "empty lines.jsonl": b"\n\r\n" * 2000,
    }
    for name, body in bodies.items():
        (folder / name).write_bytes(body)
    source = JsonLines([f"{folder}/*", f"{folder}/crlf.jsonl", f"{folder}/../in/crlf.jsonl"])  # one file thrice
    assert len(source.pieces()) == len(bodies)
    alone = cleaned_locally(tmp_path / "alone", data, source)
    store = open_store(str(tmp_path / "shared"))
    found, _ = SparkCleaning(TasksInOrder(1000), store, "c", data, source).until(float("inf"))
    assert chunk_bodies(store) == alone
    removed = [rule for chunk in found for rule in chunk.removed]
    assert removed.count("bad_records.file") == 2 and removed.count("bad_records.json") == 1
    assert sum(chunk.documents for chunk in found) == 2 + 2 + 400 + 2 + 2


def test_a_parquet_file_without_rows_is_a_file_without_documents(data: Any, tmp_path: Path) -> None:
    kinds = pa.schema([("text", pa.string())])
    pq.write_table(kinds.empty_table(), tmp_path / "empty.parquet")
    pq.ParquetWriter(tmp_path / "groupless.parquet", kinds).close()
    store, source = open_store(str(tmp_path / "store")), ParquetFiles(f"{tmp_path}/*.parquet")
    found, is_complete = SparkCleaning(TasksInOrder(10), store, "c", data, source).until(float("inf"))
    assert is_complete and [chunk.documents_read for chunk in found] == [0, 0]
    assert chunk_bodies(store) == cleaned_locally(tmp_path / "alone", data, source)


def test_a_file_that_is_gone_since_it_was_listed_is_named(data: Any, tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"text": "x"}\n' * 9)
    source = JsonLines(f"{tmp_path}/*.jsonl")
    listed = source.pieces()
    (tmp_path / "a.jsonl").unlink()
    for size in (20, 10**6):
        cleaning = SparkCleaning(TasksInOrder(size), open_store(str(tmp_path / "s")), "c", data, Listed(source, listed))
        with pytest.raises(SkytrainError, match=r"a\.jsonl has disappeared since the files were listed"):
            cleaning.until(float("inf"))
    with pytest.raises(SkytrainError, match=r"a\.jsonl has disappeared since the files were listed"):
        cleaned_locally(tmp_path / "alone", data, Listed(source, listed))


class Listed:
    """A source whose files were listed before."""

    def __init__(self, source: SpannedSource, files: list[Any]) -> None:
        self.source, self.files = source, files

    def pieces(self) -> list[Any]:
        return self.files

    def __getattr__(self, name: str) -> Any:
        return getattr(self.source, name)


def test_damage_inside_a_shared_parquet_file_ends_it_at_the_same_row(data: Any, tmp_path: Path) -> None:
    source = parquet(tmp_path / "file", random.Random(4))
    path = tmp_path / "file"
    body = bytearray(path.read_bytes())
    column = pq.ParquetFile(path).metadata.row_group(5).column(0)
    start = column.dictionary_page_offset or column.data_page_offset
    body[start : start + column.total_compressed_size] = b"\xff" * column.total_compressed_size
    path.write_bytes(body)
    alone = cleaned_locally(tmp_path / "alone", data, source)
    store = open_store(str(tmp_path / "shared"))
    found, _ = SparkCleaning(TasksInOrder(300), store, "c", data, source).until(float("inf"))
    assert chunk_bodies(store) == alone
    assert found[-1].removed["bad_records.file"] == 1
    assert sum(chunk.documents_read for chunk in found) == 42
