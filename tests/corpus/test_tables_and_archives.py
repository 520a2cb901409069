"""Parquet, CSV and web archives, whole and broken."""

from __future__ import annotations

import gzip
from importlib.metadata import version
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from skytrain.config import ConfigError
from skytrain.corpus import BadRecord, Document
from skytrain.corpus.sources import CsvFiles, ParquetFiles, TextFiles, WebArchive
from skytrain.storage import Store

PAGE = """<html><head><title>T</title><script>var x = 1;</script></head><body><nav>Home About</nav>
<main><p>The bridge was built in 1704 of stone from the near quarry, and it has stood ever since.</p>
<p>Carts cross it every day of the year, but for the week of the fair.</p></main><footer>Imprint</footer></body></html>"""


def record(kind: str, body: bytes, **headers: str) -> bytes:
    lines = [
        b"WARC/1.0",
        f"WARC-Type: {kind}".encode(),
        *(f"{name.replace('_', '-')}: {value}".encode() for name, value in headers.items()),
    ]
    return b"\r\n".join([*lines, f"Content-Length: {len(body)}".encode(), b"", body, b"", b""])


def response(number: int, body: bytes, status: str = "200 OK", kind: str = "text/html; charset=utf-8") -> bytes:
    http = f"HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body
    return record(
        "response",
        http,
        WARC_Record_ID=f"<urn:uuid:00000000-0000-0000-0000-00000000000{number}>",
        WARC_Target_URI=f"https://example.org/{number}",
        WARC_Date="2024-01-01T00:00:00Z",
        Content_Type="application/http; msgtype=response",
    )


@pytest.mark.parametrize("extraction", ["resiliparse", "trafilatura"])
def test_a_warc_yields_the_text_of_html_pages_that_were_found(tmp_path: Path, extraction: str) -> None:
    latin = PAGE.replace("bridge", "Brücke").encode("latin-1")
    records = [
        record("warcinfo", b"software: x\r\n", WARC_Record_ID="<urn:uuid:0>", Content_Type="application/warc-fields"),
        response(1, PAGE.encode()),
        response(2, PAGE.encode(), status="404 Not Found"),
        response(3, b"\x89PNG", kind="image/png"),
        response(4, latin, kind="text/html; charset=iso-8859-1"),
    ]
    (tmp_path / "a.warc.gz").write_bytes(b"".join(gzip.compress(one) for one in records))
    archive = WebArchive(str(tmp_path / "*.warc.gz"), extraction=extraction)
    documents = [document for document in archive.documents() if isinstance(document, Document)]
    assert [document.meta["url"] for document in documents] == ["https://example.org/1", "https://example.org/4"]
    assert "The bridge was built in 1704" in documents[0].text
    assert "Home About" not in documents[0].text
    assert "var x" not in documents[0].text
    assert "Brücke" in documents[1].text
    assert documents[0].id.endswith("000000000001")


def test_the_libraries_that_decide_a_pages_text_are_part_of_the_fingerprint(tmp_path: Path) -> None:
    (tmp_path / "a.warc").write_bytes(b"x")
    for extraction, libraries in (("resiliparse", ["resiliparse"]), ("trafilatura", ["trafilatura", "resiliparse"])):
        found = WebArchive(str(tmp_path / "a.warc"), extraction=extraction).fingerprint()["extraction"]
        assert found == ", ".join(f"{name} {version(name)}" for name in libraries)


def test_an_unknown_extraction_is_named() -> None:
    with pytest.raises(ConfigError, match=r"data\.source\.extraction: 'lynx' is not a choice.*\n.*trafilatura"):
        WebArchive("x.warc", extraction="lynx")


def test_a_wet_yields_its_text_as_it_is(tmp_path: Path) -> None:
    body = record(
        "conversion",
        "Café text\nof a page\n".encode(),
        WARC_Record_ID="<urn:uuid:7>",
        WARC_Target_URI="https://example.org/w",
        Content_Type="text/plain",
    )
    (tmp_path / "a.warc.wet.gz").write_bytes(gzip.compress(body))
    [document] = WebArchive(str(tmp_path / "a.warc.wet.gz")).documents()
    assert isinstance(document, Document)
    assert document.text == "Café text\nof a page\n"


def test_a_cut_warc_is_named_after_what_could_be_read(tmp_path: Path) -> None:
    whole = gzip.compress(response(1, PAGE.encode())) + gzip.compress(response(2, PAGE.encode() * 50))
    (tmp_path / "a.warc.gz").write_bytes(whole[:-60])
    found = list(WebArchive(str(tmp_path / "a.warc.gz")).documents())
    assert isinstance(found[0], Document)
    assert isinstance(found[-1], BadRecord)
    assert "a.warc.gz" in found[-1].problem


@pytest.mark.parametrize("charset", ["klingon", "idna", "undefined", "rot13", "zlib", "unicode_escape"])
def test_a_page_whose_charset_is_no_text_encoding_is_read_by_its_bytes(tmp_path: Path, charset: str) -> None:
    odd = PAGE.replace("1704", "1704 \\ud800").encode()
    pages = [PAGE.encode(), odd, PAGE.encode()]
    body = b"".join(response(i, page, kind=f"text/html; charset={charset}") for i, page in enumerate(pages))
    (tmp_path / "a.warc").write_bytes(body)
    documents = [each for each in WebArchive(str(tmp_path / "a.warc")).documents() if isinstance(each, Document)]
    assert ["The bridge was built" in document.text for document in documents] == [True, True, True]


@pytest.mark.parametrize(
    "middle", [b"GARBAGE\r\n\r\n", response(2, PAGE.encode()).replace(b"Content-Length: ", b"Content-Length: -", 1)]
)
def test_a_broken_record_of_a_warc_ends_the_file_with_one_bad_record(tmp_path: Path, middle: bytes) -> None:
    whole = response(1, PAGE.encode())
    (tmp_path / "a.warc").write_bytes(whole + middle + whole)
    (tmp_path / "b.warc.gz").write_bytes(gzip.compress(whole) + gzip.compress(middle)[:-9] + gzip.compress(whole))
    for name in ("a.warc", "b.warc.gz"):
        first, last = WebArchive(str(tmp_path / name)).documents()
        assert isinstance(first, Document) and isinstance(last, BadRecord)
        assert last.kind == "file" and name in last.problem


def test_parquet_rows_become_documents_with_the_other_columns_as_meta(tmp_path: Path) -> None:
    table = pa.table({"text": ["one", None, "three"], "id": ["a", "b", "c"], "score": [1.5, 2.5, 3.5]})
    pq.write_table(table, tmp_path / "a.parquet")
    first, second, third = ParquetFiles(str(tmp_path / "a.parquet"), id_key="id").documents()
    assert first == Document("a", "one", "parquet", {"score": 1.5})
    assert isinstance(second, BadRecord)
    assert "a.parquet row 1: 'text' is null" in second.problem
    assert isinstance(third, Document)


def test_a_missing_column_and_a_cut_parquet_file_are_named(tmp_path: Path) -> None:
    pq.write_table(pa.table({"txt": ["one"] * 1000}), tmp_path / "a.parquet")
    [bad] = ParquetFiles(str(tmp_path / "a.parquet")).documents()
    assert isinstance(bad, BadRecord)
    assert "no column 'text'" in bad.problem
    assert "did you mean data.source.text_key=txt?" in bad.problem
    body = (tmp_path / "a.parquet").read_bytes()
    (tmp_path / "a.parquet").write_bytes(body[: len(body) // 2])
    [bad] = ParquetFiles(str(tmp_path / "a.parquet"), text_key="txt").documents()
    assert isinstance(bad, BadRecord)
    assert "not a complete parquet file" in bad.problem


def test_csv_rows_become_documents_and_a_wrong_byte_spoils_its_own_row(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_bytes(b'\xef\xbb\xbftext,lang\n"two\nlines, ""quoted""",en\ncaf\xe9,fr\nlast,en\n')
    first, second, third = CsvFiles(str(tmp_path / "a.csv")).documents()
    assert first == Document("a.csv:0", 'two\nlines, "quoted"', "csv", {"lang": "en"})
    assert isinstance(second, BadRecord)
    assert second.kind == "encoding"
    assert third == Document("a.csv:2", "last", "csv", {"lang": "en"})


def test_csv_without_the_column_or_with_an_open_quote_is_named(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("body;n\nx;1\n")
    [bad] = CsvFiles(str(tmp_path / "a.csv"), delimiter=";").documents()
    assert isinstance(bad, BadRecord)
    assert "no column 'text'" in bad.problem
    (tmp_path / "a.csv").write_text('text\nfine\n"open\n')
    first, bad = CsvFiles(str(tmp_path / "a.csv")).documents()
    assert isinstance(first, Document)
    assert isinstance(bad, BadRecord)


def test_csv_with_tabs_is_read_and_another_mark_between_columns_is_named(tmp_path: Path) -> None:
    (tmp_path / "a.tsv").write_text("text\tlang\none\ten\n")
    assert [each.text for each in CsvFiles(str(tmp_path / "a.tsv"), delimiter=r"\t").documents()] == ["one"]
    for mark, typed in (("\t", r"\t"), (";", ";")):
        (tmp_path / "a.csv").write_text(f"text{mark}lang\none{mark}en\n")
        [bad] = CsvFiles(str(tmp_path / "a.csv")).documents()
        assert isinstance(bad, BadRecord)
        assert f"try data.source.delimiter='{typed}'" in bad.problem
    for wrong in ("", ";;"):
        with pytest.raises(ConfigError, match="is not one character"):
            CsvFiles("a.csv", delimiter=wrong)


@pytest.mark.parametrize("pattern", ["in/*.txt", "in/**/*.txt", "in/a.txt"])
def test_files_are_read_from_a_bucket(s3_store: Store, pattern: str) -> None:
    s3_store.write("in/a.txt", b"first")
    s3_store.write("in/other.bin", b"no")
    s3_store.write("in/deep/b.txt", b"second")
    found = TextFiles(s3_store.url(pattern))
    texts = [document.text for document in found.documents() if isinstance(document, Document)]
    assert texts == (["first", "second"] if "**" in pattern else ["first"])
    assert all(file["etag"] for file in found.fingerprint()["files"])


def test_parquet_is_read_from_a_bucket_by_ranges(s3_store: Store) -> None:
    sink = pa.BufferOutputStream()
    pq.write_table(pa.table({"text": [f"document {i}" for i in range(5000)]}), sink)
    s3_store.write("in/a.parquet", sink.getvalue().to_pybytes())
    documents = list(ParquetFiles(s3_store.url("in/*.parquet")).documents())
    assert len(documents) == 5000
