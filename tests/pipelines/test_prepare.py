"""Preparing tokens: restarts, targets, workers, and a look before anything is made."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from skytrain.config import SkytrainError
from skytrain.config.compose import compose
from skytrain.pipelines import prepare as story
from skytrain.pipelines.prepare import outline, prepare
from skytrain.runs import Silent
from skytrain.storage import open_store
from skytrain.tokens import split_of
from skytrain.tokens.tokenizers import gpt2

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
    assert rows["input"].startswith("1 files, ")
    assert "1M tokens: about 6.25 MB of text, 2.00 MB of shards" in rows["stops at"]
    assert rows["tokens"].startswith(open_store(chosen.store).url("tokens/jsonl/"))
    assert not (tmp_path / "store").exists()


def test_a_tokenizer_is_trained_once_for_a_corpus(lines: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    chosen = config(lines, tmp_path / "store", "tokenizer=bpe-4k", "tokenizer.vocab_size=300", "model.vocab_size=300")
    first = prepare(chosen, Silent())
    monkeypatch.setattr(story, "train_bpe", lambda *_: pytest.fail("trained again"))
    assert prepare(chosen, Silent()) == first
