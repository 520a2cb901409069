"""Building a corpus: the same bytes whatever the workers, a kill or a restart; and a policy for what cannot be read."""

from __future__ import annotations

import dataclasses
import json
import random
import re
import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.support.corpora import read_corpus

from skytrain.config import DataConfig, SkytrainError, compose
from skytrain.corpus import (
    BadRecord,
    CorpusManifest,
    Document,
    Pace,
    chunks,
    corpus_version,
    fingerprint_of,
    write_corpus,
)
from skytrain.corpus.chunks import Chunk, Stored
from skytrain.corpus.minhash import MinHash
from skytrain.corpus.near import scratch_bytes_per_document
from skytrain.corpus.partitions import Partitions
from skytrain.corpus.progress import CleaningProgress
from skytrain.corpus.sources import JsonLines
from skytrain.storage import AccessDenied, ScratchFull, Store, open_store
from skytrain.storage.folder import FolderStore

WORDS = [
    "the",
    "be",
    "to",
    "of",
    "and",
    "that",
    "have",
    "with",
    "river",
    "bridge",
    "stone",
    "winter",
    "engineer",
    "committee",
    "letter",
    "plan",
    "vote",
    "railing",
    "ford",
    "cart",
    "bank",
    "notice",
    "month",
    "decide",
    "replace",
    "agree",
    "debate",
    "choose",
    "begin",
    "expect",
    "surprise",
    "county",
    "member",
    "first",
    "second",
    "third",
    "lower",
    "upper",
    "old",
    "new",
    "sound",
    "long",
    "short",
]


def settings(*overrides: str) -> DataConfig:
    return compose(["data=jsonl", "data.source.paths=x", "data.name=mine", "data.workers=1", *overrides]).config.data


def text(seed: int, sentences: int = 12) -> str:
    generator = random.Random(seed)
    return " ".join(" ".join(generator.choices(WORDS, k=9)).capitalize() + "." for _ in range(sentences))


@dataclasses.dataclass
class Pieces:
    """Four files of documents, some of them duplicates; it remembers which it was asked to read and may fail."""

    fail_after: int | None = None
    read_files: list[int] = dataclasses.field(default_factory=list)
    yielded: int = 0

    def fingerprint(self) -> dict[str, Any]:
        return {"n": 1}

    def pieces(self) -> list[int]:
        return [0, 1, 2, 3]

    def read(self, piece: int) -> Iterator[Document | BadRecord]:
        self.read_files.append(piece)
        for i in range(40):
            if self.yielded == self.fail_after:
                raise KeyboardInterrupt
            self.yielded += 1
            number = piece * 40 + i
            body = text(number % 120)  # the last file repeats the first
            if i % 10 == 9:
                body = body.replace("river", "stream", 1)
            yield Document(f"d{number}", body if i % 7 else "too short", "listed", {"n": number})


@pytest.fixture(autouse=True, scope="module")
def small_chunks() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(chunks, "CHUNK_CHARS", 5000)
        yield


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[CorpusManifest, dict[str, bytes]]:
    """What an undisturbed build by one process makes of Pieces."""
    return build(tmp_path_factory.mktemp("whole"), Pieces())


def build(folder: Path, source: Any, *overrides: str) -> tuple[CorpusManifest, dict[str, bytes]]:
    store = open_store(str(folder))
    manifest = write_corpus(
        store,
        settings("data/cleaning=web", "data.near_dedup.enabled=true", "data.part_bytes=40KB", *overrides),
        source,
        "v1",
    )
    return manifest, {stat.key: store.read(stat.key) for stat in store.list("corpora")}


def test_the_bytes_do_not_depend_on_the_number_of_workers(tmp_path: Path, whole: Any) -> None:
    _, two = build(tmp_path, Pieces(), "data.workers=2")
    assert two == whole[1]
    assert len([key for key in two if key.endswith(".parquet")]) > 1


@pytest.mark.parametrize("fail_after", [3, 95, 159])
def test_a_killed_build_goes_on_where_it_was_and_ends_with_the_same_bytes(
    tmp_path: Path, whole: Any, fail_after: int
) -> None:
    with pytest.raises(KeyboardInterrupt):
        build(tmp_path / "cut", Pieces(fail_after))
    assert not (tmp_path / "cut/corpora/mine/v1/manifest.json").exists()
    again = Pieces()
    _, resumed = build(tmp_path / "cut", again)
    assert resumed == whole[1]
    assert again.read_files == list(range(fail_after // 40, 4))  # finished files are not read again


def test_the_manifest_tells_what_each_stage_and_rule_did(whole: Any) -> None:
    manifest, files = whole
    assert manifest.documents_read == 160
    assert manifest.removed["exact_dedup"] + manifest.removed["near_dedup"] >= 30
    assert sum(manifest.removed.values()) + manifest.documents == 160
    for before, after in zip(manifest.stages, manifest.stages[1:], strict=False):
        assert (before.documents_out, before.bytes_out) == (after.documents_in, after.bytes_in)
    assert manifest.stages[-1].documents_out == manifest.documents
    report = json.loads(files["corpora/mine/v1/report.json"])
    shown = [
        example["text"]
        for rule, found in report["examples"].items()
        for example in found
        if rule.startswith("language.")
    ]
    assert "too short" in shown
    near = report["near_duplicates"]
    assert near["removed"] == manifest.removed["near_dedup"]
    assert 0 <= near["below_min_similarity"] <= near["removed"]
    assert all(0 < pair["jaccard"] <= 1 for pair in near["examples"])


def test_the_first_of_near_duplicates_stays(tmp_path: Path) -> None:
    body = text(1, 40)
    source = Listed([body, text(2), body.replace("river", "stream", 1), text(3)])
    store = open_store(str(tmp_path))
    manifest = write_corpus(store, settings("data.near_dedup.enabled=true"), source, "v1")
    assert [document.id for document in read_corpus(store, manifest)] == ["0", "1", "3"]
    example = json.loads(store.read("corpora/mine/v1/report.json"))["near_duplicates"]["examples"][0]
    assert (example["removed"]["id"], example["kept"]["id"]) == ("2", "0")


@dataclasses.dataclass
class Listed:
    records: list[Any]

    def fingerprint(self) -> dict[str, Any]:
        return {}

    def documents(self) -> Iterator[Document | BadRecord]:
        for i, record in enumerate(self.records):
            yield record if isinstance(record, Document | BadRecord) else Document(str(i), record, "listed")


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return open_store(str(tmp_path / "store"))


def test_a_target_stops_reading_when_enough_is_left_after_duplicates(store: Store) -> None:
    source = Listed([text(i // 2) for i in range(400)])
    data = settings("data.target_tokens=10K", "data.bytes_per_token=4", "data.validation_fraction=0")
    manifest = write_corpus(store, data, source, "v1")
    assert not manifest.complete
    assert 40_000 <= manifest.text_bytes < 60_000
    assert manifest.documents_read < 250


def test_a_target_beyond_the_source_takes_all_of_it(store: Store) -> None:
    manifest = write_corpus(store, settings("data.target_tokens=10M"), Listed([text(i) for i in range(20)]), "v1")
    assert manifest.complete
    assert manifest.documents == 20


def test_bad_records_stop_the_work_or_are_counted(store: Store, tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(b'{"text": "first document"}\nnot json\n{"text": "caf\xe9"}\n{"body": 1}\n{"text": "last"}\n')
    source = JsonLines(str(path))
    with pytest.raises(SkytrainError, match=r"a\.jsonl:2: not JSON.*\n.*data\.bad_records=skip"):
        write_corpus(store, settings(), source, "stopped")
    assert store.list("corpora") == []
    manifest = write_corpus(store, settings("data.bad_records=skip"), source, "skipped")
    assert manifest.documents == 2
    assert {rule: count for rule, count in manifest.removed.items() if count} == {
        "bad_records.encoding": 1,
        "bad_records.json": 1,
        "bad_records.text": 1,
    }
    assert (
        "a.jsonl:2"
        in json.loads(store.read("corpora/mine/skipped/report.json"))["examples"]["bad_records.json"][0]["text"]
    )


def test_a_document_too_long_for_the_limit_is_a_bad_record(store: Store) -> None:
    source = Listed(["x" * 3000, "fine"])
    with pytest.raises(
        SkytrainError, match=r"document 0 has 3,000 characters, more than data\.max_document_bytes=2,000"
    ):
        write_corpus(store, settings("data.max_document_bytes=2KB"), source, "v1")
    manifest = write_corpus(store, settings("data.max_document_bytes=2KB", "data.bad_records=skip"), source, "v2")
    assert (manifest.documents, manifest.removed["bad_records.size"]) == (1, 1)


def test_a_second_document_of_the_same_id_stops_or_is_counted(store: Store) -> None:
    source = Listed([Document("a", "one", "s"), Document("b", "two", "s"), Document("a", "three", "s")])
    with pytest.raises(SkytrainError, match="1 document with the id of another one, the first is 'a'"):
        write_corpus(store, settings(), source, "v1")
    manifest = write_corpus(store, settings("data.bad_records=skip"), source, "v2")
    assert [document.text for document in read_corpus(store, manifest)] == ["one", "two"]
    assert manifest.removed["duplicate_ids"] == 1


def test_evaluation_sets_are_kept_out_and_part_of_the_version(store: Store, tmp_path: Path) -> None:
    secret = "the seventh lamp of the harbour was lit by a keeper who never slept"
    (tmp_path / "eval.jsonl").write_text(json.dumps({"ctx": secret}))
    data = settings(
        "data.cleaning.decontaminate.enabled=true", f"data.cleaning.decontaminate.paths=[{tmp_path}/eval.jsonl]"
    )
    source = Listed([text(1), f"{text(2)} {secret.upper()}! {text(3)}"])
    version = corpus_version(data, fingerprint_of(data, source))
    manifest = write_corpus(store, data, source, version)
    assert (manifest.documents, manifest.removed["decontaminate"]) == (1, 1)
    (tmp_path / "eval.jsonl").write_text(json.dumps({"ctx": "something else"}))
    assert corpus_version(data, fingerprint_of(data, source)) != version


def test_a_worker_that_dies_is_told_and_what_was_finished_stays(tmp_path: Path) -> None:
    with pytest.raises(SkytrainError, match="a worker process was killed"):
        build(tmp_path, Listed([Dying(str(i), text(i), "s") for i in range(40)]), "data.workers=2")
    assert not (tmp_path / "corpora/mine/v1/manifest.json").exists()


class Dying(Document):
    """A document that ends the process that receives it."""

    def __reduce__(self) -> Any:
        import os

        return os._exit, (9,)


class Refusing(FolderStore):
    """A store whose permission ends after some writes, as credentials do."""

    writes_left = 0

    def write(self, key: str, data: bytes) -> None:
        if self.writes_left == 0:
            raise AccessDenied("write", self.url(key), "the security token has expired")
        self.writes_left -= 1
        super().write(key, data)


@pytest.mark.parametrize("writes", [2, 20])
def test_a_store_that_refuses_half_way_is_told_and_the_next_call_goes_on(
    tmp_path: Path, whole: Any, writes: int
) -> None:
    data = settings("data/cleaning=web", "data.near_dedup.enabled=true", "data.part_bytes=40KB")
    store = Refusing(tmp_path / "cut")
    store.writes_left = writes
    with pytest.raises(SkytrainError, match="the security token has expired"):
        write_corpus(store, data, Pieces(), "v1")
    assert not store.exists("corpora/mine/v1/manifest.json")
    again = open_store(str(tmp_path / "cut"))
    write_corpus(again, data, Pieces(), "v1")
    assert {stat.key: again.read(stat.key) for stat in again.list("corpora")} == whole[1]


@pytest.mark.parametrize(
    ("near", "room"), [("false", "144 B to find duplicates among 3 documents\n"), ("true", "2.16 KB to find")]
)
def test_a_full_scratch_disk_is_told_with_the_room_that_is_needed(
    store: Store, monkeypatch: pytest.MonkeyPatch, near: str, room: str
) -> None:
    data = settings(f"data.near_dedup.enabled={near}")
    source = Listed([text(1), text(2), text(3)])
    with monkeypatch.context() as patch, pytest.raises(ScratchFull) as told:
        patch.setattr(Partitions, "_path", lambda *_: Path("/dev/full"))
        write_corpus(store, data, source, "v1")
    assert re.match(r"no space is left on the disk of .*skytrain-corpus-.*\n.*it takes ", str(told.value))
    assert room in str(told.value) and "TMPDIR" in str(told.value)
    assert store.list("corpora/mine/v1/clean")  # what was cleaned is not cleaned again
    assert write_corpus(store, data, source, "v1").documents == 3


def test_the_search_for_duplicates_takes_the_room_that_the_message_names(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Texts that share too little to be compared exactly: sets of shingles come on top."""
    most = 0
    plain = Partitions.read

    def read(partitions: Any, **options: Any) -> Any:
        nonlocal most
        for records in plain(partitions, **options):
            most = max(most, sum(path.stat().st_size for path in tmp_path.glob("skytrain-corpus-*/*")))
            yield records

    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(Partitions, "read", read)
    documents = [" ".join(f"{i}x{j}" for j in range(20)) for i in range(50)]
    data = settings("data.near_dedup.enabled=true")
    write_corpus(store, data, Listed(documents), "v1")
    assert most == 50 * scratch_bytes_per_document(MinHash.of(data.near_dedup))


@pytest.fixture
def four_files(tmp_path: Path) -> Path:
    folder = tmp_path / "files"
    folder.mkdir()
    for name in range(4):
        lines = [json.dumps({"id": f"{name}-{i}", "text": text(name * 100 + i)}) + "\n" for i in range(30)]
        (folder / f"{name}.jsonl").write_text("".join(lines))
    return folder


def test_files_that_workers_read_give_the_bytes_that_one_process_gives(tmp_path: Path, four_files: Path) -> None:
    source = JsonLines(f"{four_files}/*.jsonl", id_key="id")
    assert chunks._files_apart(source, source.pieces(), workers=2, needed_bytes=None)
    _, one = build(tmp_path / "one", source)
    _, two = build(tmp_path / "two", source, "data.workers=2")
    assert one == two


def test_files_are_read_in_one_place_where_the_target_is_within_the_first_of_them(four_files: Path) -> None:
    source = JsonLines(f"{four_files}/*.jsonl")
    assert not chunks._files_apart(source, source.pieces(), workers=2, needed_bytes=1000)
    assert not chunks._files_apart(source, source.pieces()[:3], workers=2, needed_bytes=None)


def test_an_error_in_a_worker_that_reads_is_told_as_it_was(store: Store, four_files: Path) -> None:
    with (four_files / "2.jsonl").open("a") as file:
        file.write("not json")
    source = JsonLines(f"{four_files}/*.jsonl", id_key="id")
    with pytest.raises(SkytrainError, match=r"2\.jsonl:31: not JSON.*\n.*data\.bad_records=skip"):
        write_corpus(store, settings("data.workers=2"), source, "v1")
    with pytest.raises(AccessDenied, match="cannot read s3://bucket/1: the token has expired"):
        write_corpus(store, settings("data.workers=2"), Denied(), "v1")


class Denied(Pieces):
    """A source in a bucket that one may no longer read."""

    def read(self, piece: int) -> Iterator[Document | BadRecord]:
        yield from super().read(piece)
        if piece:
            raise AccessDenied("read", f"s3://bucket/{piece}", "the token has expired")


@pytest.mark.parametrize("workers", [1, 2])
def test_progress_goes_from_nothing_to_all_bytes_of_the_files(store: Store, four_files: Path, workers: int) -> None:
    said: list[tuple[float, float | None]] = []
    write_corpus(
        store,
        settings(f"data.workers={workers}"),
        JsonLines(f"{four_files}/*.jsonl", id_key="id"),
        "v1",
        lambda stage, done, total, detail="", left=None: said.append((done, total)) if stage == "clean" else None,
    )
    size = sum(path.stat().st_size for path in four_files.iterdir()) / 1e6
    assert [done for done, _ in said] == sorted(done for done, _ in said)
    assert {total for _, total in said} == {size}
    assert said[-1][0] == pytest.approx(size)
    assert len(said) > 8


def test_progress_of_a_resumed_run_counts_the_speed_of_this_run_alone(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        build(tmp_path, Pieces(95))
    said: list[str] = []
    data = settings(
        "data/cleaning=web", "data.near_dedup.enabled=true", "data.part_bytes=40KB", "data.target_tokens=1M"
    )
    write_corpus(open_store(str(tmp_path)), data, Pieces(), "v1", lambda *each: said.append(each[3]))
    assert said[0].endswith("by an earlier run")
    assert not said[-1].endswith("by an earlier run")


def test_the_time_to_go_leaves_out_what_came_before_the_first_result() -> None:
    now = 0.0
    pace = Pace(lambda: now)
    assert pace.seconds_left(100, 1000) is None
    now = 1.0
    assert pace.seconds_left(300, 1000) is None  # several workers end their first piece at the same time
    now = 4.0
    assert pace.seconds_left(500, 1000) == 5.0


class Sizes:
    """A source whose pieces have sizes and nothing else."""

    def __init__(self, sizes: list[int]) -> None:
        self.sizes = sizes

    def pieces(self) -> list[Any]:
        return [SimpleNamespace(size=size) for size in self.sizes]


def test_files_that_are_read_side_by_side_count_as_soon_as_they_are_read() -> None:
    said: list[float] = []
    display = CleaningProgress(lambda stage, done, *_: said.append(done * 1e6), Sizes([100, 300]), None)
    for name, position in (("000001-000000", 200), ("000000-000000", 50), ("000001-000001-last", 300)):
        display.show(
            Stored(
                Chunk(
                    name=name,
                    input_bytes=position,
                    documents_read=1,
                    bytes_read=10,
                    documents=1,
                    bytes=10,
                    tallies={},
                    removed={},
                    examples={},
                    sizes=(0, 0, 0),
                ),
                True,
            )
        )
    assert said == pytest.approx([200, 250, 350])


def test_workers_read_from_a_bucket_and_write_to_it(s3_store: Store, four_files: Path, tmp_path: Path) -> None:
    for path in four_files.iterdir():
        s3_store.write(f"in/{path.name}", path.read_bytes())
    source = JsonLines(s3_store.url("in/*.jsonl"), id_key="id")
    manifest = write_corpus(s3_store, settings("data.workers=2"), source, "v1")
    here = open_store(str(tmp_path / "here"))
    expected = write_corpus(here, settings(), JsonLines(f"{four_files}/*.jsonl", id_key="id"), "v1")
    assert manifest.parts == expected.parts
    assert s3_store.list("corpora/mine/v1/clean") == []


def test_a_rule_that_gives_other_results_makes_another_version(monkeypatch: pytest.MonkeyPatch) -> None:
    from skytrain.corpus import near, versions
    from skytrain.corpus.rules import c4

    source = Listed(["a"])
    plain, web = settings(), settings("data/cleaning=web", "data.near_dedup.enabled=true")

    def both() -> tuple[str, str]:
        plain_version, web_version = (
            versions.corpus_version(data, versions.fingerprint_of(data, source)) for data in (plain, web)
        )
        return plain_version, web_version

    before = both()
    monkeypatch.setattr(c4, "RULE", c4.RULE._replace(revision=99))
    changed = both()
    assert changed[0] == before[0] and changed[1] != before[1]  # without the rule nothing has changed
    monkeypatch.setattr(near, "REVISION", 99)
    assert both()[1] != changed[1]
