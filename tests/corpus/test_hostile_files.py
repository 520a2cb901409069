"""Files whose author wishes us ill: a few compressed kilobytes do not fill the memory, and depth is no crash."""

from __future__ import annotations

import gzip
import io
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pytest
from pyarrow import parquet

from skytrain.config import SkytrainError
from skytrain.corpus import BadRecord, Document, files
from skytrain.corpus.sources.jsonl import JsonLines
from skytrain.corpus.sources.tables import CsvFiles, ParquetFiles
from skytrain.corpus.sources.text import TextFiles
from skytrain.corpus.sources.warc import WebArchive
from skytrain.evaluation.tasks.records import _loaded
from skytrain.merging import MERGE_FILE, read_folder_provenance
from skytrain.tokens import foreign


def parquet_of(text: bytes) -> bytes:
    """Return a table whose text is these bytes, which need not be UTF-8."""
    written = io.BytesIO()
    mark = b"#" * len(text)
    parquet.write_table(pyarrow.table({"text": [mark.decode()]}), written, compression="none", write_statistics=False)
    return written.getvalue().replace(mark, text)


UNREADABLE = parquet_of(b"\xff\xfe\xfd\xfc")


def tar_of(path: Path, name: str, data: bytes) -> Path:
    with tarfile.open(path, "w:gz") as tar:
        member = tarfile.TarInfo(name)
        member.size = len(data)
        tar.addfile(member, io.BytesIO(data))
    return path


def read(path: Path) -> list[int]:
    return [int(each) for _, ids in foreign.tar_samples(path, "here") for each in ids]


@pytest.mark.parametrize(
    ("name", "data", "said"),
    [
        ("a.json.gz", gzip.compress(b"[" + b"1," * 100_000 + b"1]"), "unpacks to more than"),
        ("a.json", b"[" + b"1," * 100_000 + b"1]", "more than a sample can have"),
        ("a.json", b"[" * 50_000, "cannot be read"),
        ("a.json.gz", gzip.compress(b"[1]")[:-9] + b"garbage!!", "cannot be read"),
        ("a.npy", b"\x93NUMPY\x01\x00\x10\x00{'shape': (\n      \n", "cannot be read"),
    ],
    ids=["packed", "large", "deep", "damaged", "header"],  # not the data: gzip writes the time into it
)
def test_a_sample_that_unpacks_without_end_is_refused(
    name: str, data: bytes, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(foreign, "MAX_SAMPLE_BYTES", 100_000)
    with pytest.raises(SkytrainError, match=said):
        read(tar_of(tmp_path / "x.tar", name, data))
    small = io.BytesIO()
    np.save(small, np.arange(3))
    assert read(tar_of(tmp_path / "y.tar", "a.npy", small.getvalue())) == [0, 1, 2]
    assert read(tar_of(tmp_path / "z.tar", "a.json.gz", gzip.compress(b"[5, 6]"))) == [5, 6]


@pytest.mark.parametrize("start", [0, 3])
def test_a_line_that_never_ends_is_refused(start: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "MAX_LINE_BYTES", 1000)
    whole = b"ab\ncd\n" + b"x" * 999 + b"\n"
    assert b"".join(line for _, line in files.lines_from(io.BytesIO(whole), 0)) == whole
    with pytest.raises(SkytrainError, match="has more than 1,000 bytes"):
        list(files.lines_from(io.BytesIO(b"ab\ncd\n" + b"x" * 1001), start))


WARC = b"WARC/1.0\r\nWARC-Type: conversion\r\nWARC-Record-ID: <urn:uuid:1>\r\nContent-Length: 2000\r\n\r\n"


@pytest.mark.parametrize(
    ("name", "data", "make"),
    [
        ("a.txt.gz", gzip.compress(b"x\n" * 1000), lambda path: TextFiles(paths=path)),
        ("b.txt", b"x\n" * 1000 + b"end\n", lambda path: TextFiles(paths=path, separator="end")),
        ("c.csv", b"text\n" + b"x" * 2000, lambda path: CsvFiles(paths=path)),
        ("d.warc", WARC + b"x" * 2000 + b"\r\n\r\n", lambda path: WebArchive(paths=path)),
    ],
    ids=["text", "separated", "csv", "warc"],
)
def test_a_document_that_never_ends_is_refused(
    name: str, data: bytes, make: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / name).write_bytes(data)
    assert [each for each in make(str(tmp_path / name)).documents() if isinstance(each, Document)]
    monkeypatch.setattr(files, "MAX_LINE_BYTES", 1000)
    [bad] = make(str(tmp_path / name)).documents()
    assert isinstance(bad, BadRecord) and "more than 1,000 bytes" in bad.problem


@pytest.mark.parametrize(
    ("name", "data", "make"),
    [
        ("a.csv", b'"text', lambda path: CsvFiles(paths=path)),
        ("a.parquet", UNREADABLE, lambda path: ParquetFiles(paths=path)),
    ],
)
def test_a_file_that_cannot_be_read_is_a_bad_record(name: str, data: bytes, make: Any, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(data)
    [bad] = make(str(tmp_path / name)).documents()
    assert isinstance(bad, BadRecord)


def test_a_tar_that_ends_in_its_first_bytes_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.tar").write_bytes(b"\x1f\x8b\x08")
    with pytest.raises(SkytrainError, match="cannot be read as a tar"):
        read(tmp_path / "a.tar")


def test_a_number_of_thousands_of_digits_spoils_its_line_only(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"text": "a", "n": ' + "1" * 5000 + '}\n{"text": "b"}\n')
    bad, good = JsonLines(paths=str(tmp_path / "a.jsonl")).documents()
    assert isinstance(bad, BadRecord) and isinstance(good, Document)


def test_depth_is_damage(tmp_path: Path) -> None:
    with pytest.raises(SkytrainError, match="not JSON"):
        _loaded("tasks", "[" * 100_000, "")
    (tmp_path / MERGE_FILE).write_text("[" * 100_000)
    assert read_folder_provenance(tmp_path) is None
