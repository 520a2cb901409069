"""Tokens go out to other projects' files and come back the same."""

from __future__ import annotations

import dataclasses
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from skytrain.config import ConfigError, SkytrainError, compose
from skytrain.pipelines.data import convert, corpus_page, describe_corpus, list_data
from skytrain.pipelines.prepare import prepare
from skytrain.runs import Silent
from skytrain.storage import DamagedRecord, open_store
from skytrain.tokens import TokenFiles, find_prepared, split_documents
from skytrain.tokens.byte_level import gpt2

TEXTS = [f"Document {i}: {'word ' * (i % 7)}and 日本 <|endoftext|>" for i in range(60)]


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("prepared")
    (folder / "a.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in [*TEXTS, "x"]))
    overrides = [
        f"data.source.paths={folder}/a.jsonl",
        f"store.root={folder}/store",
        "data.workers=1",
        "data.shard_tokens=500",
        "data.validation_fraction=0.2",
        "data.min_chars=2",
    ]
    made = compose(["data=jsonl", "tokenizer=gpt2", *overrides]).config
    prepare(made, Silent())
    return made


def documents(config: Any, split: str, tmp_path: Path) -> list[list[int]]:
    store = open_store(config.store)
    [version] = store.folders("tokens/jsonl")
    from skytrain.tokens import open_prepared

    prepared = open_prepared(store, f"tokens/jsonl/{version}/gpt2")
    assert prepared is not None
    manifest = prepared.train if split == "train" else prepared.validation
    assert manifest is not None
    return [ids.tolist() for ids in split_documents(store, prepared.prefix(split), manifest, tmp_path)]


@pytest.mark.parametrize("format", ["llmc", "nanogpt", "megatron", "parquet", "webdataset"])
def test_tokens_go_out_and_come_back(config: Any, tmp_path: Path, format: str) -> None:
    files = convert(config, format, tmp_path / "out")
    train = [str(path) for path in files if path.name.startswith("train")]
    back = [ids.tolist() for ids in TokenFiles(train, format).token_documents(50257)]
    assert back == documents(config, "train", tmp_path)
    assert any(path.name.startswith("val") for path in files)


def test_the_documents_are_the_texts(config: Any, tmp_path: Path) -> None:
    texts = [gpt2().decode(ids) for split in ("train", "validation") for ids in documents(config, split, tmp_path)]
    assert sorted(texts) == sorted(TEXTS)


def test_nanogpt_and_megatron_files_have_their_projects_bytes(config: Any, tmp_path: Path) -> None:
    expected = documents(config, "train", tmp_path)
    flat = [token for ids in expected for token in (*ids, 50256)]
    convert(config, "nanogpt", tmp_path / "n")
    assert np.fromfile(tmp_path / "n/train.bin", np.uint16).tolist() == flat
    convert(config, "megatron", tmp_path / "m")
    assert np.fromfile(tmp_path / "m/train.bin", np.uint16).tolist() == flat
    index = (tmp_path / "m/train.idx").read_bytes()
    assert index[:9] == b"MMIDIDX\0\0"
    assert np.frombuffer(index, "<u8", 1, 9).tolist() == [1]
    assert index[17] == 8
    assert np.frombuffer(index, "<u8", 2, 18).tolist() == [len(expected), len(expected) + 1]
    assert np.frombuffer(index, "<i4", len(expected), 34).tolist() == [len(ids) + 1 for ids in expected]


def test_other_projects_tokens_become_shards(config: Any, tmp_path: Path) -> None:
    convert(config, "nanogpt", tmp_path / "out")
    overrides = [
        f"data.source.paths={tmp_path}/out/train.bin",
        "data.source.format=nanogpt",
        "data.name=theirs",
        f"store.root={tmp_path}/store",
        "data.validation_fraction=0",
    ]
    prepared = prepare(compose(["data=tokens", "tokenizer=gpt2", *overrides]).config, Silent())
    assert prepared.train.documents == len(documents(config, "train", tmp_path))
    with pytest.raises(SkytrainError, match="data made from tokens has no corpus"):
        describe_corpus(compose(["data=tokens", "tokenizer=gpt2", *overrides]).config)


def test_a_corpus_is_shown_with_examples_of_what_went(config: Any) -> None:
    page = describe_corpus(config)
    assert "min_chars" in page
    assert "a.jsonl:61: 'x'" in page
    assert describe_corpus(compose([f"store.root={config.store.root}"]).config, config.data.name) == page


def test_a_corpus_has_a_page_with_its_rules_and_texts_that_cannot_be_code(config: Any, tmp_path: Path) -> None:
    root = Path(shutil.copytree(config.store.root.removeprefix("file://"), tmp_path / "store"))
    (report,) = root.rglob("report.json")
    written = json.loads(report.read_text())
    pair = {
        "jaccard": 0.9,
        "kept": {"id": "k", "text": "one <script>two</script> three"},
        "removed": {"id": "r", "text": "one <script>2</script> three"},
    }
    written["near_duplicates"] = {"clusters": 1, "removed": 1, "cluster_sizes": {"2": 1}, "examples": [pair]}
    report.write_text(json.dumps(written))
    here = dataclasses.replace(config, store=dataclasses.replace(config.store, root=f"file://{root}"))
    page = corpus_page(here)
    assert "a.jsonl:61" in page and "min_chars" in page
    assert "one <mark>&lt;script&gt;two&lt;/script&gt;</mark> three" in page
    assert "<script" not in page
    written["near_duplicates"]["cluster_sizes"] = 7
    report.write_text(json.dumps(written))
    with pytest.raises(DamagedRecord):
        corpus_page(here)


def test_a_corpus_is_shown_whatever_tokenizer_its_tokens_were_made_with(config: Any) -> None:
    other = dataclasses.replace(config, tokenizer=compose(["tokenizer=bytes"]).config.tokenizer)
    assert describe_corpus(other) == describe_corpus(config)


def test_what_a_store_holds_is_listed(config: Any, tmp_path: Path) -> None:
    root = Path(shutil.copytree(config.store.root.removeprefix("file://"), tmp_path / "store"))
    bytewise = compose(["data=synthetic", "tokenizer=bytes", "data.source.tokens=1000", f"store.root={root}"]).config
    prepare(bytewise, Silent())
    listing = list_data(bytewise)
    text, synthetic = listing.datasets
    store = open_store(str(root))
    prepared = find_prepared(store, config.data, config.tokenizer)
    assert prepared.validation is not None
    assert (text.dataset, text.version, text.tokenizer) == tuple(prepared.folder.split("/")[1:])
    assert (text.tokens, text.validation_tokens) == (prepared.train.tokens, prepared.validation.tokens)
    assert text.documents == len(TEXTS)
    assert text.text_bytes == sum(len(each.encode()) for each in TEXTS)
    files = [stat for stat in store.list(prepared.folder) if not stat.key.endswith("/manifest.json")]
    assert text.bytes == sum(stat.size for stat in files)
    assert text.corpus_bytes == sum(path.stat().st_size for path in root.glob("corpora/jsonl/*/*.parquet"))
    assert (synthetic.dataset, synthetic.corpus_bytes) == ("synthetic", 0)
    [tokenizer] = listing.tokenizers
    assert (tokenizer.vocab_size, tokenizer.used_by) == (257, [f"synthetic@{synthetic.version}"])


def test_converted_files_are_replaced_only_when_asked(config: Any, tmp_path: Path) -> None:
    first = convert(config, "llmc", tmp_path)
    stale = tmp_path / "train_000001.bin"
    stale.write_bytes(b"of a longer conversion")
    with pytest.raises(SkytrainError, match=r"has 3 converted files already: train_000000\.bin.*\n.*--overwrite"):
        convert(config, "llmc", tmp_path)
    assert convert(config, "llmc", tmp_path, overwrite=True) == first
    assert not stale.exists()


def test_wrong_formats_and_cut_files_are_named(config: Any, tmp_path: Path) -> None:
    with pytest.raises(SkytrainError, match=r"--to megatrn: not a format\n.*did you mean megatron"):
        convert(config, "megatrn", tmp_path)
    with pytest.raises(ConfigError, match=r"data\.source\.format: 'x'"):
        TokenFiles("a", "x")
    convert(config, "llmc", tmp_path)
    path = next(tmp_path.glob("train*.bin"))
    path.write_bytes(path.read_bytes()[:-2])
    with pytest.raises(SkytrainError, match=r"not a whole llm\.c file"):
        list(TokenFiles(str(path), "llmc").token_documents(50257))
    convert(config, "megatron", tmp_path / "m")
    (tmp_path / "m/train.idx").unlink()
    with pytest.raises(SkytrainError, match=r"has no index train\.idx"):
        list(TokenFiles(str(tmp_path / "m/train.bin"), "megatron").token_documents(50257))
