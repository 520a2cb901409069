"""Data sets of the hub: the real loading code against small files of the very same layout, served on loopback."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.corpus.hub import COMMIT, loopback_hub
from tests.support.corpora import read_corpus

from skytrain.config import ConfigError, SkytrainError, compose, make
from skytrain.corpus import Document, chunks, write_corpus
from skytrain.corpus.sources import AddressLists, addresses
from skytrain.storage import StoreError, open_store
from skytrain.tokens import Split, split_of


def lines(*records: object) -> bytes:
    return b"".join(json.dumps(record).encode() + b"\n" for record in records)


def zstd(data: bytes) -> bytes:
    return pa.Codec("zstd").compress(data, asbytes=True)


def parquet(path: Path, **columns: list[Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table(columns), path)


def write(path: Path, body: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(body)


def pile(folder: Path) -> None:
    for i in range(2):
        records = [
            {"text": f"text {i}-{k}", "meta": {"pile_set_name": ("ArXiv", "Github", "Wikipedia (en)")[k % 3]}}
            for k in range(30)
        ]
        write(folder / f"train/0{i}.jsonl.zst", zstd(lines(*records)))
    write(folder / "val.jsonl.zst", zstd(lines({"text": "held out", "meta": {"pile_set_name": "ArXiv"}})))


def fineweb(folder: Path) -> None:
    for i in range(2):
        parquet(
            folder / f"sample/10BT/00{i}_00000.parquet",
            text=[f"page {i}-{k}" for k in range(5)],
            id=[f"<urn:uuid:{i}-{k}>" for k in range(5)],
            dump=["CC-MAIN-2024-10"] * 5,
            url=[f"https://example.org/{k}" for k in range(5)],
            language_score=[0.9] * 5,
        )
    parquet(folder / "data/CC-MAIN-2024-10/000.parquet", text=["not in the sample"], id=["x"])


def c4(folder: Path) -> None:
    for i in range(2):
        records = [
            {"text": f"web text {i}-{k}", "timestamp": "2019-04-25T12:57:54Z", "url": "http://example.org"}
            for k in range(5)
        ]
        write(folder / f"en/c4-train.0000{i}-of-01024.json.gz", gzip.compress(lines(*records)))
    write(folder / "en/c4-validation.00000-of-00008.json.gz", gzip.compress(lines({"text": "held out"})))


def slimpajama(folder: Path) -> None:
    records = [
        {"text": f"text {k}", "meta": {"redpajama_set_name": "RedPajamaBook" if k % 2 else "RedPajamaC4"}}
        for k in range(10)
    ]
    write(folder / "train/chunk1/example_train_0.jsonl.zst", zstd(lines(*records)))


def tinystories(folder: Path) -> None:
    write(
        folder / "TinyStoriesV2-GPT4-train.txt",
        b"Once upon a time.\nThe end.\n<|endoftext|>\nA cat sat.\n<|endoftext|>\n",
    )
    write(folder / "TinyStoriesV2-GPT4-valid.txt", b"held out\n")


def openwebtext(folder: Path) -> None:
    parquet(folder / "plain_text/train/0000.parquet", text=["Port-au-Prince, Haiti (CNN)", "another"])


def wikitext(folder: Path) -> None:
    for split, pages in (("train", ["first", "second"]), ("validation", ["held out"]), ("test", ["not read"])):
        parquet(folder / f"wikitext-103-raw-v1/wikitext-103-raw-v1-{split}.parquet", page=pages)


def dolma(folder: Path, address: str) -> list[str]:
    """Its repository lists addresses; the files themselves are elsewhere."""
    names = ["dolma-v1_7/c4-filtered/c4-0000.json.gz", "dolma-v1_7/wiki/wiki-0000.json.gz"]
    for name in names:
        records = [
            {"id": f"{name}#{k}", "text": f"text {k}", "added": "2024-04-01", "source": "wiki", "metadata": {"n": k}}
            for k in range(4000)
        ]
        write(folder / name, gzip.compress(lines(*records)))
    return [f"{address}/{name}" for name in names]


LAYOUTS = [
    (pile, "pile", 60),
    (fineweb, "fineweb", 10),
    (fineweb, "fineweb-edu", 10),
    (c4, "c4", 10),
    (slimpajama, "slimpajama", 10),
    (tinystories, "tinystories", 3),
    (openwebtext, "openwebtext", 2),
    (wikitext, "wikitext", 3),
]


@pytest.fixture(autouse=True)
def online(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)  # loopback is not the network


def source(name: str, endpoint: str, *overrides: str) -> Any:
    revision = ["data.source.revision=main"] if name == "openwebtext" else []
    config = compose([f"data={name}", *revision, *overrides]).config.data.source
    return make(config.target, {**config.args, "endpoint": endpoint}, key="data.source")


def repo_of(name: str) -> str:
    return str(compose([f"data={name}"]).config.data.source.args["repo"])


@pytest.mark.parametrize(("layout", "name", "count"), LAYOUTS, ids=[name for _, name, _ in LAYOUTS])
def test_a_data_set_is_streamed_from_its_commit(tmp_path: Path, layout: Any, name: str, count: int) -> None:
    layout(tmp_path)
    with loopback_hub(tmp_path, repo_of(name)) as endpoint:
        made = source(name, endpoint)
        documents = list(made.documents())
        fingerprint = made.fingerprint()
    assert len(documents) == count
    assert all(isinstance(document, Document) for document in documents)
    assert len({document.id for document in documents}) == count
    held_out = {"tinystories": 1, "wikitext": 1}.get(name, 0)
    assert sum("held out" in document.text for document in documents) == held_out
    assert not any("not in the sample" in document.text or "not read" in document.text for document in documents)
    assert fingerprint["commit"] == COMMIT


def test_components_are_chosen_by_name_or_by_share(tmp_path: Path) -> None:
    pile(tmp_path)
    with loopback_hub(tmp_path, repo_of("pile")) as endpoint:
        chosen = list(source("pile", endpoint, "data.source.components=[ArXiv]").documents())
        shared = list(source("pile", endpoint, "data.source.components={ArXiv: 1, Github: 0.5}").documents())
    assert {document.meta["meta"]["pile_set_name"] for document in chosen} == {"ArXiv"}
    assert len(chosen) == 20
    github = [document for document in shared if document.meta["meta"]["pile_set_name"] == "Github"]
    assert 2 < len(github) < 18
    assert len(shared) == 20 + len(github)


def test_fineweb_keeps_its_ids_and_addresses(tmp_path: Path) -> None:
    fineweb(tmp_path)
    with loopback_hub(tmp_path, repo_of("fineweb")) as endpoint:
        first = next(iter(source("fineweb", endpoint).documents()))
    assert (first.id, first.meta["url"]) == ("<urn:uuid:0-0>", "https://example.org/0")


def test_wrong_choices_are_named(tmp_path: Path) -> None:
    fineweb(tmp_path)
    with loopback_hub(tmp_path, repo_of("fineweb")) as endpoint:
        with pytest.raises(ConfigError, match=r"data\.source\.files: .*no file that matches nothing/\*"):
            list(source("fineweb", endpoint, "data.source.files=nothing/*").documents())
        with pytest.raises(
            StoreError, match=r"(?s)cannot find hf://datasets/HuggingFaceFW/fineweb@v9: .*data.source.revision"
        ):
            source("fineweb", endpoint, "data.source.revision=v9").fingerprint()
    with pytest.raises(ConfigError, match=r"data\.source\.components\.ArXiv: 2\.0 is not a share"):
        source("pile", "http://127.0.0.1:1", "data.source.components={ArXiv: 2}")


@pytest.mark.parametrize("name", ["pile", "dolma"])
def test_a_hub_that_cannot_be_reached_is_one_message_with_a_fix(name: str) -> None:
    with pytest.raises(StoreError, match=r"(?s)cannot find hf://datasets/.*@main: .*check this machine's network"):
        source(name, "http://127.0.0.1:1").fingerprint()


@pytest.mark.parametrize(("layout", "name"), [(pile, "pile"), (fineweb, "fineweb"), (c4, "c4")])
def test_a_hub_that_goes_away_is_not_taken_for_a_damaged_file(tmp_path: Path, layout: Any, name: str) -> None:
    layout(tmp_path)
    with loopback_hub(tmp_path, repo_of(name)) as endpoint:
        made = source(name, endpoint)
        made.pieces()
    with pytest.raises(StoreError, match=r"(?s)cannot open hf://datasets/.*check this machine's network"):
        list(made.documents())


def test_a_server_that_cannot_be_reached_is_one_message_with_a_fix(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(addresses, "FIND_SECONDS", 0.1)
    write(tmp_path / "lists.txt", b"http://127.0.0.1:1/a.jsonl")
    made = AddressLists(str(tmp_path / "lists.txt"))
    with pytest.raises(StoreError, match=r"(?s)cannot find http://127.0.0.1:1/a.jsonl: .*check this machine's network"):
        made.pieces()


def test_dolma_is_streamed_from_the_addresses_that_its_repository_lists(tmp_path: Path) -> None:
    with loopback_hub(tmp_path, repo_of("dolma"), files_at="elsewhere") as endpoint:
        listed = dolma(tmp_path / "elsewhere", f"{endpoint}/elsewhere")
        write(tmp_path / "urls/v1_7.txt", "\n".join([*reversed(listed), ""]).encode())
        made = source("dolma", endpoint)
        documents = list(made.documents())
        fingerprint = made.fingerprint()
        some = list(source("dolma", endpoint, "data.source.only=*/wiki/*").documents())
        with pytest.raises(ConfigError, match=r"data\.source\.only: none of 2 addresses matches nothing"):
            source("dolma", endpoint, "data.source.only=nothing").pieces()
        write(tmp_path / "urls/v1_7.txt", f"{endpoint}/elsewhere/gone.json.gz".encode())
        with pytest.raises(SkytrainError, match=r"gone\.json\.gz: there is no such file"):
            source("dolma", endpoint).pieces()
    assert [document.id for document in documents] == [f"{a.split('/', 4)[4]}#{k}" for a in listed for k in range(4000)]
    assert len(some) == 4000
    assert fingerprint["commit"] == COMMIT
    assert all(file["size"] and file["etag"] for file in fingerprint["files"])


def test_workers_stream_a_data_set_of_many_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "0")  # for the workers, as `online` is for this process
    for i in range(4):
        write(tmp_path / f"hub/train/0{i}.jsonl.zst", zstd(lines(*({"text": f"text {i}-{k}"} for k in range(50)))))
    data = compose(["data=pile", "data.workers=2", "data.exact_dedup=false"]).config.data
    with loopback_hub(tmp_path / "hub", repo_of("pile")) as endpoint:
        made = source("pile", endpoint)
        assert chunks._files_apart(made, made.pieces(), workers=2, needed_bytes=None)
        store = open_store(str(tmp_path / "store"))
        manifest = write_corpus(store, data, made, "v1")
    assert [d.text for d in read_corpus(store, manifest)] == [f"text {i}-{k}" for i in range(4) for k in range(50)]


def test_a_known_data_set_is_read_from_files_that_were_downloaded_before(tmp_path: Path) -> None:
    write(tmp_path / "TinyStoriesV2-GPT4-train.txt", b"One day.\n<|endoftext|>\nThe end.\n<|endoftext|>\n")
    overrides = ["data=tinystories", f"data.source.paths={tmp_path}/*.txt"]

    def read(*more: str) -> dict[str, Split]:
        source = compose([*overrides, *more]).config.data.source
        documents = list(make(source.target, source.args, key="data.source").documents())
        return {each.text.strip(): split_of(each.id, 0.0) for each in documents if isinstance(each, Document)}

    with pytest.raises(ConfigError, match=r"0 of the 1 files in data\.source\.paths are named like .*-valid\.txt"):
        read()
    assert read("data.source.validation_files=null") == {"One day.": "train", "The end.": "train"}
    write(tmp_path / "TinyStoriesV2-GPT4-valid.txt", b"Held out.\n")
    assert read() == {"Held out.": "validation", "One day.": "train", "The end.": "train"}


@pytest.mark.parametrize(("layout", "name"), [(tinystories, "tinystories"), (wikitext, "wikitext")])
def test_a_data_set_with_validation_files_of_its_own_is_split_by_them(
    tmp_path: Path, layout: Callable[[Path], None], name: str
) -> None:
    layout(tmp_path)
    with loopback_hub(tmp_path, repo_of(name)) as endpoint:
        documents = [each for each in source(name, endpoint).documents() if isinstance(each, Document)]
    assert [(each.text.strip() == "held out", split_of(each.id, 0.0)) for each in documents] == [
        (True, "validation"), (False, "train"), (False, "train"),
    ]  # fmt: skip
