"""Tokenizers: exact ids, exact text back, and a Hugging Face folder that agrees."""

from __future__ import annotations

import json
import random
import re
import sys
import warnings
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from skytrain.config import BPETokenizerConfig, SkytrainError
from skytrain.config.schema import GPT2TokenizerConfig
from skytrain.storage import open_store
from skytrain.tokens import byte_level, encoders, open_tokenizer, store_tokenizer, train_bpe
from skytrain.tokens.byte_level import ByteLevelBPE, gpt2
from skytrain.tokens.encoders import TRICKY
from skytrain.tokens.long_texts import cut_long_words, cut_text, encode_in_pieces

ANY_TEXT = st.text(st.characters(codec="utf-8"))
SAMPLE = [
    "It's a small world, isn't it?\n  def f(x): return x + 1\n",
    "naïve café: 你好, 世界! 🏳️‍🌈 the end of the words\n",
] * 3

FAST, TIKTOKEN = encoders.fastokens_encoder(gpt2().definition), encoders.tiktoken_encoder(gpt2()._bytes[:-1])


def config(vocab_size: int = 300) -> BPETokenizerConfig:
    return BPETokenizerConfig(kind="bpe", name="bpe-tiny", vocab_size=vocab_size, sample_bytes=10_000)


@pytest.fixture(scope="module")
def trained() -> ByteLevelBPE:
    return train_bpe(config(), SAMPLE)


@given(ANY_TEXT)
def test_any_unicode_comes_back_from_gpt2(text: str) -> None:
    ids = gpt2().encode_batch([text])[0]
    assert gpt2().decode(ids) == text
    assert gpt2().decode_bytes(ids) == text.encode()
    assert gpt2().eot not in ids


@given(text=ANY_TEXT)
def test_any_unicode_comes_back_from_a_trained_bpe(trained: ByteLevelBPE, text: str) -> None:
    ids = trained.encode_batch([text])[0]
    assert trained.decode(ids) == text
    assert trained.eot not in ids


@given(st.lists(ANY_TEXT, max_size=5))
def test_fastokens_gives_tiktokens_ids(texts: list[str]) -> None:
    assert [ids.tolist() for ids in FAST(texts)] == [ids.tolist() for ids in TIKTOKEN(texts)]


def test_gpt2_gives_openais_ids() -> None:
    ids = gpt2().encode_batch(["Hello world", " Hello  world\n"])
    assert [array.tolist() for array in ids] == [[15496, 995], [18435, 220, 995, 198]]
    assert (gpt2().vocab_size, gpt2().eot, gpt2().id) == (50257, 50256, "gpt2")


def test_a_spelled_out_end_of_text_stays_text(trained: ByteLevelBPE) -> None:
    for tokenizer in (gpt2(), trained):
        ids = tokenizer.encode_batch(["a<|endoftext|>b"])[0]
        assert tokenizer.eot not in ids
        assert tokenizer.decode(ids) == "a<|endoftext|>b"
        assert tokenizer.decode_bytes([tokenizer.eot]) == b"<|endoftext|>"


def test_decoding_bytes_keeps_a_character_that_two_tokens_share() -> None:
    ids = gpt2().encode_batch(["🏳"])[0]
    assert len(ids) > 1
    assert gpt2().decode(ids[:1]) == "\ufffd"
    assert b"".join(gpt2().decode_bytes([id_]) for id_ in ids).decode() == "🏳"


def test_a_fast_encoder_with_other_ids_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        encoders, "fastokens_encoder", lambda definition: lambda texts: [np.zeros(1, np.uint32) for _ in texts]
    )
    gpt2.cache_clear()
    with pytest.warns(UserWarning, match="other ids than the reference"):
        assert gpt2().encode_batch(["Hello world"])[0].tolist() == [15496, 995]
    gpt2.cache_clear()


def test_without_fastokens_the_reference_works_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "fastokens", None)
    gpt2.cache_clear()
    with pytest.warns(UserWarning, match="fastokens is not installed"):
        assert gpt2().encode_batch(["Hello world"])[0].tolist() == [15496, 995]
    gpt2.cache_clear()


def test_altered_vocabulary_files_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "encoder.json").write_text("{}")
    monkeypatch.setattr(byte_level, "_gpt2_path", lambda name: tmp_path / name)
    gpt2.cache_clear()
    with pytest.raises(SkytrainError, match=r"encoder\.json is not GPT-2's"):
        gpt2()
    gpt2.cache_clear()


def test_training_is_deterministic_and_ends_with_the_end_of_text(trained: ByteLevelBPE) -> None:
    assert train_bpe(config(), SAMPLE).hash == trained.hash
    assert (trained.vocab_size, trained.eot) == (300, 299)
    assert train_bpe(config(), [*SAMPLE, "another text entirely, another text entirely"]).hash != trained.hash


def test_training_reads_no_more_than_the_sample() -> None:
    read = []
    texts = (read.append(i) or SAMPLE[0] for i in range(10_000))  # type: ignore[func-returns-value]
    train_bpe(BPETokenizerConfig(kind="bpe", name="t", vocab_size=260, sample_bytes=1000), texts)
    assert len(read) < 50


def test_a_sample_too_small_for_the_vocabulary_names_the_size_that_fits() -> None:
    with pytest.raises(SkytrainError, match=r"vocab_size=5000.*\n.*tokenizer.vocab_size=\d+") as error:
        train_bpe(config(5000), SAMPLE)
    fits = int(str(error.value).rpartition("=")[2])
    assert train_bpe(config(fits), SAMPLE).vocab_size == fits


def test_a_trained_tokenizer_is_stored_once_and_opened_by_name_or_id(trained: ByteLevelBPE, tmp_path: Path) -> None:
    store = open_store(str(tmp_path))
    id_ = store_tokenizer(trained, store)
    assert store_tokenizer(trained, store) == id_ == trained.id
    for opened in (open_tokenizer(config(), store), open_tokenizer(config(), store, id_)):
        assert opened.hash == trained.hash
        assert opened.encode_batch(SAMPLE)[0].tolist() == trained.encode_batch(SAMPLE)[0].tolist()
    assert open_tokenizer(GPT2TokenizerConfig("gpt2", "gpt2", 50257), store).hash == gpt2().hash


def test_a_missing_or_altered_tokenizer_is_named(trained: ByteLevelBPE, tmp_path: Path) -> None:
    store = open_store(str(tmp_path))
    with pytest.raises(SkytrainError, match="no tokenizer 'bpe-tiny'"):
        open_tokenizer(config(), store)
    store.write(
        f"tokenizers/{trained.id}/tokenizer.json",
        trained.definition.replace('"use_regex":true', '"use_regex":false').encode(),
    )
    with pytest.raises(SkytrainError, match="was altered"):
        open_tokenizer(config(), store)


def test_hugging_face_loads_the_saved_folder_with_the_same_ids(trained: ByteLevelBPE, tmp_path: Path) -> None:
    from transformers import AutoTokenizer

    for tokenizer in (gpt2(), trained):
        tokenizer.save(tmp_path / tokenizer.id)
        theirs = AutoTokenizer.from_pretrained(tmp_path / tokenizer.id)
        assert len(theirs) == tokenizer.vocab_size
        assert theirs.eos_token_id == tokenizer.eot
        for text in TRICKY:
            ids = tokenizer.encode_batch([text])[0].tolist()
            assert theirs(text, split_special_tokens=True)["input_ids"] == ids
            assert theirs.decode(ids) == text
        assert theirs("a<|endoftext|>")["input_ids"][-1] == tokenizer.eot
        assert (
            json.loads((tmp_path / tokenizer.id / "special_tokens_map.json").read_text())["eos_token"]
            == "<|endoftext|>"
        )


def test_the_fast_encoder_is_the_one_in_use() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        gpt2.cache_clear()
        assert gpt2()._encode.__qualname__.startswith("fastokens_encoder")


@settings(max_examples=300)
@given(st.text(st.sampled_from("abé1٣ \t\n'\"_.,，。s\u00a0\u0301\x1c你😀")), st.integers(1, 12))
def test_a_text_in_pieces_has_the_ids_of_the_whole_text(text: str, limit: int) -> None:
    pieces = list(cut_text(text, limit))
    assert "".join(pieces) == text
    assert all(len(piece) <= limit for piece in pieces)
    cut_inside_a_word = any(
        not (before[-1].isalnum() and not after[0].isalnum() and after[0] != "\u00a0")
        for before, after in pairwise(pieces)
    )
    if not cut_inside_a_word:
        assert np.concatenate(TIKTOKEN(pieces)).tolist() == TIKTOKEN([text])[0].tolist()


def test_long_and_short_texts_of_a_batch_come_back_in_order_with_the_same_ids() -> None:
    long = "It's 10,000 words, isn't it? 你好，世界。\n" * 60_000  # some 2 million characters
    texts = ["", "one", long, "two", long[5:], ""]
    for mine, expected in zip(encode_in_pieces(FAST, texts, np.uint16), FAST(texts), strict=True):
        assert np.array_equal(mine, expected)


@settings(max_examples=100)
@given(st.text(st.sampled_from("abé1٣ \t\n'\"_.,，。s\u00a0\u0301\x1c你😀")), st.integers(1, 6))
def test_only_words_over_the_limit_are_cut(text: str, limit: int) -> None:
    pieces = cut_long_words(text, limit)
    assert "".join(pieces) == text
    runs = re.findall(r"[^\W\d_]+|\d+|(?:[^\w\s]|_)+", text)
    assert (len(pieces) == 1) or max(map(len, runs)) >= limit
    assert all(len(run) <= limit for piece in pieces for run in re.findall(r"[^\W\d_]+|\d+|(?:[^\w\s]|_)+", piece))


def test_a_word_of_any_length_is_cut_before_a_tokenizer_learns_from_it(monkeypatch: pytest.MonkeyPatch) -> None:
    word = "".join(random.Random(0).choices("abcdefghijklmnopqrstuvwxyz", k=100_000))
    texts = [word, f"AND {word} MORE"]
    pieces = list(byte_level._sample(texts, 1 << 20))
    assert "".join(pieces) == "".join(texts)
    assert max(len(part) for piece in pieces for part in piece.split()) == byte_level.TRAINING_WORD_CHARS
    monkeypatch.setattr(byte_level, "LONG_WORDS_CHARS", 60_000)  # reached in the first text
    sampled = "".join(byte_level._sample(texts, 1 << 20))
    assert 60_000 <= len(sampled) < 70_000 and "AND" in sampled and sampled.endswith(" MORE")
    assert train_bpe(config(), texts).vocab_size == 300
