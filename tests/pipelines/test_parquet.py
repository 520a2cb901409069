"""Parquet in and out: token ids become shards, kept documents become parquet, and both come back the same."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from skytrain.config import SkytrainError, compose
from skytrain.pipelines.data import export_kept
from skytrain.pipelines.prepare import prepare
from skytrain.runs import Silent
from skytrain.storage import open_store
from skytrain.tokens import ParquetTokens, Prepared, parquet_tokens

LISTS = [[1, 2, 3], [4], [50255] * 40, [5, 6]] * 6


def write(path: Path, column: Any, name: str = "tokens", **more: Any) -> Path:
    pq.write_table(pa.table({name: column, **more}), path, row_group_size=7)
    return path


def rows(path: Path, **settings: Any) -> list[list[int]]:
    return [ids.tolist() for ids in ParquetTokens(str(path), **settings).token_documents(50257)]


@pytest.mark.parametrize(
    "kind", [pa.list_(pa.int64()), pa.large_list(pa.int32()), pa.list_(pa.uint16()), pa.list_(pa.uint32())]
)
def test_rows_of_every_integer_type_are_documents(tmp_path: Path, kind: Any) -> None:
    assert rows(write(tmp_path / "a.parquet", pa.array(LISTS, kind))) == LISTS


def test_the_only_column_of_lists_is_read_and_lists_may_have_one_length(tmp_path: Path) -> None:
    column = pa.array([[1, 2], [3, 4], [5, 6]], pa.list_(pa.int16(), 2))
    assert rows(write(tmp_path / "a.parquet", column, "chosen", more=[1, 2, 3])) == [[1, 2], [3, 4], [5, 6]]


def test_the_token_between_documents_is_none_of_theirs(tmp_path: Path) -> None:
    path = write(tmp_path / "a.parquet", [[9, 1, 2], [3, 9], [4, 9, 5], [9], []], "input_ids", labels=[[1]] * 5)
    assert rows(path, eot=9) == [[1, 2], [3], [4], [5]]
    assert rows(path, column="labels", eot=9) == [[1]] * 5


def test_long_rows_are_read_a_few_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lists = [[i] * 500 for i in range(20)]
    path = write(tmp_path / "a.parquet", pa.array(lists, pa.list_(pa.uint16())))
    monkeypatch.setattr(parquet_tokens, "BATCH_BYTES", pq.read_metadata(path).row_group(0).total_byte_size // 3)
    assert parquet_tokens._rows_at_once(pq.read_metadata(path)) == 2
    assert rows(path) == lists


@pytest.mark.parametrize(
    ("column", "settings", "problem"),
    [
        ([[1], [2, 70000]], {}, r"row 1: token id 70000 is outside the vocabulary of 50257 tokens\n.*tokenizer="),
        ([[1], [2, -1]], {}, r"row 1: token id -1 is outside the vocabulary"),
        ([[1]] * 9 + [None], {}, r"row 9: null instead of token ids"),
        ([[1]] * 8 + [[], [2, None]], {}, r"row 9: a null among its token ids"),
        ([[1.5]], {}, r"no column of token ids.*tokens \(list<.*double>\)"),
        (["text"], {}, r"no column of token ids.*\n.*data=parquet data\.source\.text_key=tokens"),
        ([[1]], {"column": "tokns"}, r"no column 'tokns'.*\n.*did you mean data\.source\.column=tokens"),
        ([7], {"column": "tokens"}, r"column 'tokens' holds int64, not lists of integers"),
        (pa.array([], pa.list_(pa.int32())), {}, r"no row of any file holds a token"),
        (pa.array([[], []], pa.list_(pa.int32())), {}, r"no row of any file holds a token"),
    ],
)
def test_what_is_no_token_ids_is_named(tmp_path: Path, column: Any, settings: Any, problem: str) -> None:
    with pytest.raises(SkytrainError, match=problem):
        rows(write(tmp_path / "a.parquet", column), **settings)


def test_several_columns_and_broken_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(SkytrainError, match=r"several columns of token ids.*\n.*data\.source\.column=one"):
        rows(write(tmp_path / "a.parquet", [[1]], "one", two=[[2]]))
    with pytest.raises(SkytrainError, match=r"choose one: 'data\.source\.column=\$\(touch attacked\)'"):
        rows(write(tmp_path / "d.parquet", [[1]], "$(touch attacked)", two=[[2]]))
    (tmp_path / "b.parquet").write_bytes((tmp_path / "a.parquet").read_bytes()[:-9])
    with pytest.raises(SkytrainError, match="not a whole parquet file"):
        rows(tmp_path / "b.parquet")
    (tmp_path / "c.parquet").touch()
    with pytest.raises(SkytrainError, match=r"c\.parquet is empty"):
        rows(tmp_path / "c.parquet")


def test_documents_instead_of_token_ids_are_told_apart(tmp_path: Path) -> None:
    path = write(tmp_path / "a.parquet", [[1, 2]])
    config = compose(["data=parquet", f"data.source.paths={path}", f"store.root={tmp_path}/s", "tokenizer=gpt2"]).config
    with pytest.raises(
        SkytrainError, match=r"no column 'text'\n(.*\n)*.*data=parquet-tokens data\.source\.column=tokens"
    ):
        prepare(config, Silent())


TEXTS = [f"Document {i}: {'word ' * (i % 7)}and 日本 <|endoftext|>" for i in range(60)]


@pytest.fixture(scope="module")
def documents(tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("prepared")
    lines = [json.dumps({"text": text, "id": f"d{i}", "url": f"u{i}"}) + "\n" for i, text in enumerate(TEXTS)]
    (folder / "a.jsonl").write_text("".join([*lines, *lines[:9], '{"text": "x", "id": "short"}\n']))
    return made(folder, "data=jsonl", f"data.source.paths={folder}/a.jsonl")


def made(folder: Path, *overrides: str) -> tuple[Any, Prepared]:
    small = ["data.part_bytes=800", "data.shard_tokens=500", "data.validation_fraction=0.2", "data.min_chars=2"]
    given = ["data.source.id_key=id", "data.bad_records=skip", "data.workers=1", f"store.root={folder}/store"]
    config = compose([*overrides, *small, *given, "tokenizer=gpt2"]).config
    return config, prepare(config, Silent())


@pytest.mark.parametrize("compression", ["snappy", "zstd", "none"])
def test_kept_documents_go_out_as_parquet_and_come_back_as_the_same_shards(
    documents: Any, tmp_path: Path, compression: Any
) -> None:
    config, before = documents
    files = list(export_kept(config, None, str(tmp_path / "out"), compression, False, Silent()))
    names = sorted(path.name for path in (tmp_path / "out").iterdir())
    assert [url.rpartition("/")[2] for url in files] == names and len(names) > 3
    tables = [pq.ParquetFile(tmp_path / "out" / name) for name in names]
    codec = {"none": "UNCOMPRESSED"}.get(compression, compression.upper())
    assert {table.metadata.row_group(0).column(1).compression for table in tables} == {codec}
    found = [row for table in tables for row in table.read().to_pylist()]
    assert [(row["id"], row["text"], row["meta"]) for row in found] == [
        (f"d{i}", text, f'{{"url": "u{i}"}}') for i, text in enumerate(TEXTS)
    ]
    _, after = made(tmp_path, "data=parquet", f"data.source.paths={tmp_path}/out/*.parquet")
    assert (after.train.shards, after.validation.shards) == (before.train.shards, before.validation.shards)


def test_an_interrupted_export_continues_after_its_last_file(documents: Any, tmp_path: Path) -> None:
    config, before = documents
    [_, dataset, version, _] = before.folder.split("/")
    files = export_kept(config, f"{dataset}@{version}", str(tmp_path), "snappy", False, Silent())
    first, second = Path(next(files).removeprefix("file://")), Path(next(files).removeprefix("file://"))
    files.close()
    second.write_bytes(b"PAR1")  # what another tool left, cut off
    stat = first.stat()
    with pytest.raises(SkytrainError, match=rf"1 other parquet file: {second.name}\n.*--overwrite"):
        list(export_kept(config, dataset, str(tmp_path), "snappy", False, Silent()))
    second.unlink()
    assert len(list(export_kept(config, dataset, str(tmp_path), "snappy", False, Silent()))) > 3
    assert first.stat() == stat  # not written again
    with pytest.raises(SkytrainError, match="other parquet files"):  # the same documents, compressed otherwise
        list(export_kept(config, dataset, str(tmp_path), "zstd", False, Silent()))
    list(export_kept(config, dataset, str(tmp_path), "zstd", True, Silent()))
    assert pq.read_metadata(first).row_group(0).column(1).compression == "ZSTD"


def test_a_data_set_that_is_not_there_is_named(documents: Any, tmp_path: Path) -> None:
    config, _ = documents
    with pytest.raises(SkytrainError, match=r"holds no corpus jsonlines\n.*did you mean jsonl"):
        list(export_kept(config, "jsonlines", str(tmp_path), "zstd", False, Silent()))


def test_token_ids_become_the_shards_of_the_documents_that_they_came_from(tmp_path: Path) -> None:
    write(tmp_path / "a.parquet", LISTS, "input_ids")
    overrides = ["data=parquet-tokens", f"data.source.paths={tmp_path}/*.parquet", "data.validation_fraction=0"]
    prepared = prepare(compose([*overrides, f"store.root={tmp_path}/store", "tokenizer=gpt2"]).config, Silent())
    store = open_store(f"{tmp_path}/store")
    tokens = [token for ids in LISTS for token in (50256, *ids)]
    assert prepared.train.tokens == len(tokens)
    body = store.read(f"{prepared.prefix('train')}/{prepared.train.shards[0].name}.bin")[1024:]
    assert memoryview(body).cast("H").tolist() == tokens


def test_parquet_is_read_from_s3_and_written_there(documents: Any, s3_root: str, tmp_path: Path) -> None:
    config, before = documents
    assert len(list(export_kept(config, "jsonl", f"{s3_root}/kept", "snappy", False, Silent()))) > 3
    _, after = made(tmp_path, "data=parquet", f"data.source.paths={s3_root}/kept/*.parquet")
    assert after.train.shards == before.train.shards
    open_store(s3_root).upload(write(tmp_path / "a.parquet", LISTS), "tokens/a.parquet")
    paths = [f"data.source.paths={s3_root}/tokens/*.parquet", f"store.root={s3_root}/project"]
    prepared = prepare(compose(["data=parquet-tokens", "tokenizer=gpt2", *paths]).config, Silent())
    assert prepared.train.tokens + (prepared.validation.tokens if prepared.validation else 0) == sum(
        len(ids) + 1 for ids in LISTS
    )
