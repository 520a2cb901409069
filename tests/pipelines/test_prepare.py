"""Preparing tokens: restarts, targets, workers, and the outline that writes nothing."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from skytrain.config import SkytrainError, compose
from skytrain.corpus import find_corpus
from skytrain.pipelines import prepare as story
from skytrain.pipelines.prepare import outline, prepare
from skytrain.runs import Silent
from skytrain.storage import open_store
from skytrain.tokens import find_prepared, split_of
from skytrain.tokens.byte_level import gpt2

TEXTS = {
    f"d{i}": f"Document {i} says: {' '.join(str(i * k) for k in range(20))} <|endoftext|> naïve 日本"
    for i in range(120)
}


@pytest.fixture
def lines(tmp_path: Path) -> Path:
    path = tmp_path / "a.jsonl"
    path.write_text("".join(json.dumps({"id": id_, "text": text}) + "\n" for id_, text in TEXTS.items()))
    return path


def config(lines: Path, store: Path, *overrides: str) -> Any:
    settings = [
        f"data.source.paths={lines}",
        "data.source.id_key=id",
        "data.shard_tokens=1000",
        "data.part_bytes=4KB",
        "data.validation_fraction=0.2",
    ]
    return compose(
        ["data=jsonl", "tokenizer=gpt2", f"store.root={store}", "data.workers=1", *settings, *overrides]
    ).config


def files(store: Path) -> dict[str, bytes]:
    return {str(path.relative_to(store)): path.read_bytes() for path in sorted(store.rglob("*")) if path.is_file()}


def documents(store: Path, folder: str, split: str) -> list[str]:
    """The texts back out of the shards."""
    texts = []
    for path in sorted((store / folder / split).glob("*.bin")):
        tokens = np.frombuffer(path.read_bytes()[1024:], np.uint16)
        ends = np.frombuffer(path.with_suffix(".idx").read_bytes(), np.uint64).astype(int)
        for start, end in zip([0, *ends[:-1]], ends, strict=True):
            assert tokens[start] == gpt2().eot
            texts.append(gpt2().decode(tokens[start + 1 : end]))
    return texts


def test_every_document_comes_back_from_its_split(lines: Path, tmp_path: Path) -> None:
    prepared = prepare(config(lines, tmp_path / "store"), Silent())
    for split in ("train", "validation"):
        expected = [text for id_, text in TEXTS.items() if split_of(id_, 0.2) == split]
        assert documents(tmp_path / "store", prepared.folder, split) == expected
    assert len(prepared.train.shards) > 2


@pytest.mark.parametrize("target", [[], ["data.target_tokens=300", "data.bytes_per_token=4"]])
def test_files_of_your_own_are_the_validation_split(lines: Path, tmp_path: Path, target: list[str]) -> None:
    """A target of training tokens does not cut them off, and what is in both splits is held out."""
    held_out = tmp_path / "held-out.jsonl"
    texts = ["a sentence of its own", *list(TEXTS.values())[:2]]
    held_out.write_text("".join(json.dumps({"id": f"h{k}", "text": text}) + "\n" for k, text in enumerate(texts)))
    words = (f"data.source.validation_paths={held_out}", "data.validation_fraction=0", *target)
    prepared = prepare(config(lines, tmp_path / "store", *words), Silent())
    assert documents(tmp_path / "store", prepared.folder, "validation") == texts
    training = documents(tmp_path / "store", prepared.folder, "train")
    rest = [text for text in TEXTS.values() if text not in texts]
    assert training == (rest[: len(training)] if target else rest) and training


class Notes(Silent):
    def __init__(self) -> None:
        self.said: list[str] = []

    def note(self, text: str) -> None:
        self.said.append(text)

    def table(self, title: str, rows: Sequence[tuple[str, str]]) -> None:
        self.said += [f"{name}: {value}" for name, value in rows]


def text_config(folder: Path, *overrides: str) -> Any:
    settings = ["data=text", f"data.source.paths={folder}/*.txt", f"store.root={folder / 'store'}"]
    return compose([*settings, "tokenizer=bytes", "data.workers=1", *overrides]).config


def test_after_an_edit_of_the_sources_the_preparation_of_what_they_are_now_is_meant(tmp_path: Path) -> None:
    source, config = tmp_path / "a.txt", text_config(tmp_path)
    source.write_text("first")
    old = prepare(config, Silent())
    source.write_text("second, longer")
    new = prepare(config, Silent())
    store = open_store(config.store)
    assert old.folder != new.folder
    assert find_prepared(store, config.data, config.tokenizer) == new
    assert find_corpus(store, config.data).text_bytes == len("second, longer")
    source.write_text("first")
    assert find_prepared(store, config.data, config.tokenizer) == old
    source.write_text("third")
    with pytest.raises(SkytrainError, match=r"(?s)holds 2 preparations.*none of them.*data\.version=VERSION"):
        find_prepared(store, config.data, config.tokenizer)
    source.unlink()
    with pytest.raises(SkytrainError, match=r"(?s)holds 2 preparations.*could not be compared.*data\.version=VERSION"):
        find_prepared(store, config.data, config.tokenizer)


def test_of_tokenizers_trained_on_samples_of_different_size_the_one_of_the_settings_is_meant(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("one two three four " * 50)
    (tmp_path / "b.txt").write_text("five six seven eight " * 50)
    made = {}
    for size in ("100B", "10KB"):
        sized = text_config(tmp_path, "tokenizer.vocab_size=262", "tokenizer.name=t", f"tokenizer.sample_bytes={size}")
        made[size] = (sized, prepare(sized, Silent()))
    assert len({prepared.folder for _, prepared in made.values()}) == 2
    for sized, prepared in made.values():
        assert find_prepared(open_store(sized.store), sized.data, sized.tokenizer) == prepared


def test_what_is_odd_about_a_corpus_is_told(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("one\x00 <|endoftext|> two\x00")
    notes = Notes()
    prepare(text_config(tmp_path, "data.source.separator='<|endoftext|>'"), notes)
    text = "\n".join(notes.said)
    assert "no line of 1 file is data.source.separator='<|endoftext|>':" in text
    assert "the text holds 2 NUL bytes" in text
    assert "no validation split: by chance, none of 1 document is in it" in text
    assert "read: 1 document, 23 B" in text
    assert "1 documents" not in text


@pytest.mark.parametrize("documents", [2, 40])
def test_the_fraction_suggested_where_a_split_is_empty_gives_both_splits(tmp_path: Path, documents: int) -> None:
    for i in range(documents):
        (tmp_path / f"{i}.txt").write_text(f"document {i}")
    notes = Notes()
    prepare(text_config(tmp_path, "data.validation_fraction=0.000001"), notes)
    suggested = notes.said[-1].split("so does ")[1]
    both = prepare(text_config(tmp_path, suggested), Silent())
    assert both.validation and both.validation.documents + both.train.documents == documents
    with pytest.raises(SkytrainError, match=f"training split is empty.*\n.*{suggested}"):
        prepare(text_config(tmp_path, "data.validation_fraction=1"), Silent())


def test_a_single_document_needs_a_separator_or_further_documents(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("one\n<|endoftext|>\ntwo\n<|endoftext|>\nthree\n")
    notes = Notes()
    prepare(text_config(tmp_path), notes)
    assert "give more documents, or name the line that ends a document" in notes.said[-1]
    with pytest.raises(SkytrainError, match="a single document cannot be divided"):
        prepare(text_config(tmp_path, "data.validation_fraction=1"), Silent())


def test_the_last_line_of_progress_is_printed_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(story, "REPORT_SECONDS", -1.0)
    (tmp_path / "a.txt").write_text("one two three")
    reported: list[tuple[float, float | None]] = []

    class Watched(Silent):
        def progress(self, stage: str, done: float, total: float | None, *_: Any) -> None:
            if stage == "tokens":
                reported.append((done, total))

    prepared = prepare(text_config(tmp_path), Watched())
    assert reported.count((prepared.train.tokens, prepared.train.tokens)) == 1


def test_a_tokenizer_of_bytes_is_not_said_to_be_trained(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("one two three four " * 50)
    notes = Notes()
    prepare(text_config(tmp_path), notes)
    prepare(text_config(tmp_path, "tokenizer.vocab_size=262", "tokenizer.name=t"), notes)
    told = [line for line in notes.said if line.startswith("tokenizer ")]
    assert ["trained on the corpus" in line for line in told] == [False, True]


def test_an_ordinary_corpus_gives_no_warning(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("".join(f"document {i}\n<|endoftext|>\n" for i in range(100)))
    (tmp_path / "b.txt").write_text("one document\n<|endoftext|>\n")
    notes = Notes()
    prepare(text_config(tmp_path, "data.source.separator='<|endoftext|>'", "data.validation_fraction=0.3"), notes)
    assert not any("warning" in line or "no validation" in line for line in notes.said)


def test_one_document_a_file_that_ends_with_the_separator_gives_no_warning(tmp_path: Path) -> None:
    (tmp_path / "b.txt").write_text("one document\r\n<|endoftext|>\r\n")
    notes = Notes()
    prepare(text_config(tmp_path, "data.source.separator='<|endoftext|>'", "data.validation_fraction=0"), notes)
    assert not any("warning" in line for line in notes.said)
    assert "no validation split: data.validation_fraction=0" in notes.said


def test_the_outline_names_a_trained_tokenizer_by_its_id_once_there_is_one(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("one two three four " * 50)
    config = text_config(tmp_path, "data.validation_fraction=0")
    assert dict(outline(config))["tokens"].endswith("/bytes-<hash>")
    prepared = prepare(config, Silent())
    assert dict(outline(config))["tokens"] == f"file://{tmp_path}/store/{prepared.folder} (already there)"
    assert dict(outline(config))["input"].startswith("1 file, ")


class Killed(Exception):
    pass


@pytest.mark.parametrize("after", [0, 2])
def test_a_killed_tokenizing_goes_on_after_its_last_shard_and_ends_with_the_same_bytes(
    lines: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, after: int
) -> None:
    prepare(config(lines, tmp_path / "whole"), Silent())
    real = story.tokenize_corpus
    tokenized: list[int] = []

    def dying(*given: Any) -> Any:
        for part in real(*given):
            if len(list((tmp_path / "cut").glob("tokens/*/*/*/train/*.bin"))) > after:
                raise Killed
            yield part

    def watching(*given: Any) -> Any:
        for part in real(*given):
            tokenized.append(int((np.diff(part.ends, prepend=0) > 0).sum()))
            yield part

    monkeypatch.setattr(story, "tokenize_corpus", dying)
    with pytest.raises(Killed):
        prepare(config(lines, tmp_path / "cut"), Silent())
    assert not list((tmp_path / "cut").glob("tokens/*/*/*/train/manifest.json"))
    monkeypatch.setattr(story, "tokenize_corpus", watching)
    prepare(config(lines, tmp_path / "cut"), Silent())
    assert files(tmp_path / "cut") == files(tmp_path / "whole")
    assert sum(tokenized) < len(TEXTS) - 8 * after  # what is in a finished shard is not tokenized again


def test_the_bytes_do_not_depend_on_the_number_of_workers(lines: Path, tmp_path: Path) -> None:
    for name, workers in (("one", 1), ("two", 2)):
        prepare(config(lines, tmp_path / name, f"data.workers={workers}"), Silent())
    assert files(tmp_path / "one") == files(tmp_path / "two")


def test_a_target_is_reached_and_not_passed_by_more_than_a_document(lines: Path, tmp_path: Path) -> None:
    prepared = prepare(config(lines, tmp_path / "store", "data.target_tokens=2K"), Silent())
    assert 2000 <= prepared.train.tokens < 2200


def test_a_target_that_the_kept_text_cannot_reach_says_what_to_keep(
    lines: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("skytrain.corpus.chunks.CHUNK_CHARS", 1000)
    with pytest.raises(
        SkytrainError, match=r"data\.target_tokens=3K: the text that was kept gives only .*\n.*data\.bytes_per_token=\d"
    ):
        prepare(config(lines, tmp_path / "store", "data.target_tokens=3K", "data.bytes_per_token=0.5"), Silent())


def test_a_dry_run_tells_stages_sizes_and_places_and_makes_nothing(lines: Path, tmp_path: Path) -> None:
    chosen = config(
        lines, tmp_path / "store", "data/cleaning=web", "data.near_dedup.enabled=true", "data.target_tokens=1M"
    )
    rows = dict(outline(chosen))
    assert rows["stages"].startswith(
        "read -> normalize -> min_chars -> language -> gopher_repetition -> gopher_quality -> c4 -> fineweb -> pii"
    )
    assert rows["stages"].endswith("exact_dedup -> near_dedup -> write -> tokenize")
    assert rows["input"].startswith("1 file, ")
    assert "1M tokens: about 6.25 MB of text, 2.00 MB of shards" in rows["stops at"]
    assert rows["tokens"].startswith(open_store(chosen.store).url("tokens/jsonl/"))
    assert not (tmp_path / "store").exists()


def test_a_tokenizer_is_trained_once_for_a_corpus(lines: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    chosen = config(lines, tmp_path / "store", "tokenizer=bpe-4k", "tokenizer.vocab_size=300", "model.vocab_size=300")
    first = prepare(chosen, Silent())
    monkeypatch.setattr(story, "train_bpe", lambda *_: pytest.fail("trained again"))
    assert prepare(chosen, Silent()) == first


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"<|endoftext|>\n" * 2, r"(?s)nothing is left of 2 documents: .*check that data\.source"),
        ("a text".encode("utf-16"), r"(?s)is not UTF-8\n.*iconv -f utf-16 -t utf-8"),
    ],
    ids=["empty documents", "UTF-16"],
)
def test_a_text_file_that_gives_no_text_is_refused_with_a_fix(tmp_path: Path, body: bytes, message: str) -> None:
    (tmp_path / "a.txt").write_bytes(body)
    with pytest.raises(SkytrainError, match=message):
        prepare(text_config(tmp_path, "data.source.separator='<|endoftext|>'"), Silent())


def test_data_without_documents_is_not_for_spark(tmp_path: Path) -> None:
    tokens = compose(["data=synthetic", "engine=spark", f"store.root={tmp_path}"]).config
    with pytest.raises(SkytrainError, match=r"(?s)engine: spark prepares documents; data=synthetic.*engine=local"):
        prepare(tokens, Silent())
