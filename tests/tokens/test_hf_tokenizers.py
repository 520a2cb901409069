"""Tokenizers of Hugging Face's, compared with AutoTokenizer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from skytrain.tokens import HFTokenizer, load_tokenizer_folder
from skytrain.tokens.encoders import TRICKY
from tests.support.hf_tokenizers import KINDS, TEXT, make_tokenizer_folder

SPELLED = (
    "<s> a</s>b<unk> <|eot_id|>x<start_of_turn>user",
    "<bos>\n\n\n<table> x</table>\n\n<eos>",
    "</s>",
    " </s> y<pad><|begin_of_text|> <|end_of_text|>",
    "▁▁a ▁ <0x0A> <0xE4>",
)
SAMPLE = [*TRICKY, *SPELLED, TEXT]


@pytest.fixture(scope="session")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    top = tmp_path_factory.mktemp("tokenizers")
    return {kind: make_tokenizer_folder(kind, top / kind) for kind in KINDS}


@pytest.fixture(scope="session")
def pairs(folders: dict[str, Path]) -> dict[str, tuple[HFTokenizer, Any]]:
    """Ours and AutoTokenizer, by kind."""
    from transformers import AutoTokenizer

    found = {}
    for kind, folder in folders.items():
        ours = load_tokenizer_folder(folder)
        assert isinstance(ours, HFTokenizer)
        found[kind] = (ours, AutoTokenizer.from_pretrained(folder))
    return found


def lists(encoded: list[np.ndarray]) -> list[list[int]]:
    return [ids.tolist() for ids in encoded]


@pytest.mark.parametrize("kind", ["byte_level", "sentencepiece_bpe", "gemma"])
def test_text_gets_the_ids_of_auto_tokenizer(pairs: dict[str, Any], kind: str) -> None:
    ours, theirs = pairs[kind]
    expected = theirs(SAMPLE, add_special_tokens=False, split_special_tokens=True).input_ids
    assert lists(ours.encode_batch(SAMPLE)) == expected


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.filterwarnings("ignore:fastokens does not serve")
def test_special_tokens_that_a_template_spells_get_the_ids_of_auto_tokenizer(pairs: dict[str, Any], kind: str) -> None:
    ours, theirs = pairs[kind]
    assert lists(ours.encode_rendered(SAMPLE)) == theirs(SAMPLE, add_special_tokens=False).input_ids


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.filterwarnings("ignore:fastokens does not serve")
def test_no_text_becomes_a_special_token(pairs: dict[str, Any], kind: str) -> None:
    ours, theirs = pairs[kind]
    special = set(theirs.all_special_ids) - {theirs.unk_token_id}
    spelled = [text for token in theirs.all_special_tokens for text in (token, f" {token}", f"a{token}b {token}\n")]
    for text, ids in zip(spelled, ours.encode_batch(spelled), strict=True):
        assert not special & set(ids.tolist()), text


@pytest.mark.parametrize(
    ("kind", "begin", "prefix", "stops"),
    [
        ("byte_level", "<|begin_of_text|>", True, ["<|begin_of_text|>", "<|end_of_text|>"]),
        ("sentencepiece_bpe", "<s>", True, ["<s>", "</s>"]),
        ("gemma", "<bos>", True, ["<bos>", "<eos>"]),
        ("unigram", "</s>", False, ["</s>"]),  # its rule ends a text with the token that begins the next document
    ],
)
def test_the_tokens_around_a_document_follow_the_tokenizers_rules(
    pairs: dict[str, Any], kind: str, begin: str, prefix: bool, stops: list[str]
) -> None:
    ours, theirs = pairs[kind]
    assert ours.decode([ours.eot]) == begin
    assert {ours.decode([id_]) for id_ in ours.stop_ids} == set(stops)
    document = ours.encode_documents(["Some text"])[0].tolist()
    assert document == ours.encode_batch(["Some text"])[0].tolist()
    assert ours.encode_prompt("Some text") == ([ours.eot] if prefix else []) + document
    assert ours.encode_prompt("") == [ours.eot]
    if prefix:
        assert [ours.eot, *document] == theirs("Some text").input_ids


@pytest.mark.parametrize("kind", KINDS)
@given(text=st.text(st.characters(codec="utf-8"), max_size=30), data=st.data())
@settings(max_examples=40, deadline=None)
def test_streamed_pieces_join_to_the_decoded_text_and_hold_whole_characters(
    pairs: dict[str, Any], kind: str, text: str, data: st.DataObject
) -> None:
    ours, theirs = pairs[kind]
    ids = theirs(f"Say {text}", add_special_tokens=False).input_ids
    whole = ours.decode(ids)
    # A prompt is a text, so it ends with a whole character.
    cut = data.draw(st.sampled_from([i for i in range(len(ids) + 1) if whole.startswith(ours.decode(ids[:i]))]))
    decoder = ours.stream(ids[:cut])
    pieces = [decoder.add(id_) for id_ in ids[cut:]]
    assert ours.decode(ids[:cut]) + "".join(pieces) + decoder.end() == whole
    if "\ufffd" not in whole:
        assert not any("\ufffd" in piece for piece in pieces)
