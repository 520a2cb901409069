"""Sources yield the same documents every time, and name the file and line of what they cannot read."""

from __future__ import annotations

import errno
import gzip
import json
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from skytrain.config import ConfigError, SkytrainError
from skytrain.corpus import BadRecord, Document
from skytrain.corpus.sources import JsonLines, PythonDocs, Synthetic, TextFiles


def zstd(data: bytes) -> bytes:
    return pa.Codec("zstd").compress(data, asbytes=True)


def lines(*records: object) -> bytes:
    return b"".join(json.dumps(record).encode() + b"\n" for record in records)


def test_python_docs_hold_megabytes_of_text_with_unique_ids_without_importing_the_library() -> None:
    code = (
        "import sys; from skytrain.corpus.sources import PythonDocs; docs = list(PythonDocs().documents());"
        "ids = [d.id for d in docs]; print(len(ids), len(set(ids)), sum(len(d.text) for d in docs), 'turtle' in sys.modules, 'turtle' in ids, 'topic:with' in ids)"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    count, unique, chars = map(int, out[:3])
    assert count == unique > 5000
    assert chars > 2_000_000
    assert out[3:] == ["False", "True", "True"]


def test_python_docs_fingerprint_is_the_interpreter() -> None:
    assert PythonDocs().fingerprint() == {"python": sys.version.split()[0]}


def test_text_without_a_separator_is_one_document_a_file(tmp_path: Path) -> None:
    (tmp_path / "b.txt").write_text("second\n")
    (tmp_path / "a.txt").write_bytes(b"\xef\xbb\xbffirst <|endoftext|>\n\x00 caf\xc3\xa9")
    documents = list(TextFiles(str(tmp_path / "*.txt")).documents())
    assert [(d.id, d.text) for d in documents] == [("a.txt", "first <|endoftext|>\n\x00 café"), ("b.txt", "second\n")]


def test_a_separator_line_ends_a_document_and_one_inside_a_line_does_not(tmp_path: Path) -> None:
    path = tmp_path / "stories.txt"
    path.write_bytes(b"One.\nMore.\n<|endoftext|>\r\nTwo <|endoftext|> still two\n<|endoftext|>\nThree")
    documents = list(TextFiles(str(path), separator="<|endoftext|>").documents())
    assert [d.text for d in documents] == ["One.\nMore.", "Two <|endoftext|> still two", "Three"]
    assert [d.id for d in documents] == ["stories.txt:0", "stories.txt:1", "stories.txt:2"]


def test_ids_do_not_depend_on_where_the_files_lie(tmp_path: Path) -> None:
    found = []
    for place in ("here", "over/there"):
        for name in ("x/a.txt", "y/a.txt"):
            path = tmp_path / place / name
            path.parent.mkdir(parents=True)
            path.write_text(name)
        source = TextFiles(str(tmp_path / place / "**/*.txt"))
        found.append(([d.id for d in source.documents()], source.fingerprint()))
    assert found[0] == found[1]
    assert found[0][0] == ["x/a.txt", "y/a.txt"]


def test_the_fingerprint_changes_with_the_bytes(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text("one")
    before = TextFiles(str(path)).fingerprint()
    path.write_text("two")
    assert TextFiles(str(path)).fingerprint() != before


@pytest.mark.parametrize(("ending", "pack"), [("jsonl", bytes), ("jsonl.gz", gzip.compress), ("jsonl.zst", zstd)])
def test_json_lines_are_read_compressed_or_not(tmp_path: Path, ending: str, pack: object) -> None:
    body = lines({"text": "first", "url": "u"}, {"text": "second <|endoftext|>"})
    (tmp_path / f"a.{ending}").write_bytes(pack(body))  # type: ignore[operator]
    documents = list(JsonLines(str(tmp_path / f"*.{ending}")).documents())
    assert [(d.id, d.text, d.meta) for d in documents] == [
        (f"a.{ending}:1", "first", {"url": "u"}),
        (f"a.{ending}:2", "second <|endoftext|>", {}),
    ]


def test_json_lines_take_their_text_and_id_from_the_named_keys(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_bytes(lines({"body": "hello", "n": 7, "more": [1]}))
    [document] = JsonLines(str(tmp_path / "a.jsonl"), text_key="body", id_key="n").documents()
    assert (document.id, document.text, document.meta) == ("7", "hello", {"more": [1]})


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b'{"text": "ok"}\n{"text": "cut\n', r"a\.jsonl:2: not JSON"),
        (b'{"text": "ok"}\n\n[1]\n', r"a\.jsonl:3: a line must be an object"),
        (b'{"test": "ok"}\n', r"a\.jsonl:1: 'text' is not text\n.*text_key=test"),
        (b'{"text": 3}\n', r"a\.jsonl:1: 'text' is not text"),
        (b'{"text": "caf\xe9"}\n', r"a\.jsonl:1: byte 0xe9 is not UTF-8"),
        (b'{"text": "\\ud800"}\n', r"a\.jsonl:1: .*surrogate"),
    ],
)
def test_a_broken_line_is_named_with_its_file(tmp_path: Path, body: bytes, message: str) -> None:
    (tmp_path / "a.jsonl").write_bytes(body)
    *_, bad = JsonLines(str(tmp_path / "a.jsonl")).documents()
    assert isinstance(bad, BadRecord)
    assert re.search(message, bad.problem)


@pytest.mark.parametrize(("ending", "pack"), [("gz", gzip.compress), ("zst", zstd)])
def test_a_cut_archive_is_named(tmp_path: Path, ending: str, pack: object) -> None:
    body = pack(lines(*({"text": f"document {i} " + "x" * (i % 97)} for i in range(5000))))  # type: ignore[operator]
    (tmp_path / f"a.jsonl.{ending}").write_bytes(body[: len(body) // 2])
    *documents, bad = JsonLines(str(tmp_path / f"a.jsonl.{ending}")).documents()
    assert isinstance(bad, BadRecord)
    assert bad.kind == "file"
    assert f"a.jsonl.{ending}" in bad.problem
    assert all(isinstance(document, Document) for document in documents[:-1])


def test_wrong_encoding_of_a_text_is_named_with_its_byte(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"first\n--\ncaf\xe9\n")
    first, bad = TextFiles(str(tmp_path / "a.txt"), separator="--").documents()
    assert isinstance(first, Document)
    assert isinstance(bad, BadRecord)
    assert re.search(r"a\.txt: byte 0xe9 at 12 is not UTF-8", bad.problem)


def test_missing_unmatched_and_empty_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"data\.source\.paths: no such file: 'nowhere.txt'"):
        list(TextFiles("nowhere.txt").documents())
    with pytest.raises(ConfigError, match=r"data\.source\.paths: no file matches"):
        list(TextFiles(str(tmp_path / "*.txt")).documents())
    with pytest.raises(ConfigError, match=r"is a folder\n  name the files in it"):
        list(TextFiles(str(tmp_path)).documents())
    (tmp_path / "a.txt").touch()
    with pytest.raises(SkytrainError, match=r"a\.txt is empty"):
        list(TextFiles(str(tmp_path / "*.txt")).documents())


def test_a_file_that_this_user_may_not_read_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a.txt").write_text("a text")

    def denied(path: Path, mode: str) -> None:  # a file's own mode does not stop the root user, who may run this test
        raise PermissionError(errno.EACCES, "Permission denied", str(path))

    monkeypatch.setattr(Path, "open", denied)
    with pytest.raises(SkytrainError, match=r"a\.txt: Permission denied\n  give this user permission"):
        TextFiles(str(tmp_path / "a.txt")).fingerprint()


def test_synthetic_tokens_are_exact_in_number_and_the_same_for_the_same_seed() -> None:
    def draw(**changes: object) -> list[np.ndarray]:
        return list(Synthetic(**{"tokens": "10K", "document_tokens": 100, **changes}).token_documents(1000))  # type: ignore[arg-type]

    first = draw()
    assert sum(map(len, first)) == 10_000
    assert all(np.array_equal(a, b) for a, b in zip(first, draw(), strict=True))
    assert not np.array_equal(first[0], draw(seed=1)[0])
    joined = np.concatenate(first)
    assert joined.max() < 1000
    counts = np.bincount(joined, minlength=1000)
    assert counts[0] > 5 * counts[10]  # Zipf's first word is much more common than its tenth
    flat = np.bincount(np.concatenate(draw(distribution="uniform")), minlength=1000)
    assert flat.max() < 40


def test_synthetic_names_a_bad_setting() -> None:
    with pytest.raises(ConfigError, match=r"data\.source\.distribution: 'normal'"):
        Synthetic(distribution="normal")
    with pytest.raises(ConfigError, match=r"data\.source\.tokens: '1X'"):
        Synthetic(tokens="1X")
