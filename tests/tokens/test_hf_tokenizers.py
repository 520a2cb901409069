"""Tokenizers of Hugging Face's, compared with AutoTokenizer."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from skytrain.config import BPETokenizerConfig, ConfigError, SkytrainError, compose
from skytrain.storage import DamagedRecord, open_store
from skytrain.tokens import hf_encoders, load_tokenizer_folder, open_tokenizer, read_tokenizer_settings, train_bpe
from skytrain.tokens.encoders import TRICKY
from skytrain.tokens.hf_files import TokenizerFiles, read_tokenizer_files, tokenizer_id
from skytrain.tokens.hf_tokenizer import HFTokenizer, read_hf_tokenizer
from tests.support.hf_tokenizers import CHAT_TEMPLATE, KINDS, TEXT, make_tokenizer_folder

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
@settings(max_examples=40)
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


def settings_of(name: Path | str, root: Path, *more: str) -> Any:
    overrides = ["tokenizer=hf", f"tokenizer.name={name}", "model=llama-micro", f"store.root='{root}'", *more]
    return compose(overrides, read_tokenizer=read_tokenizer_settings).config


def test_the_store_keeps_a_tokenizer_once_and_serves_it_without_its_folder(
    folders: dict[str, Path], tmp_path: Path
) -> None:
    folder = tmp_path / "mine"
    shutil.copytree(folders["byte_level"], folder)
    (folder / "additional_chat_templates").mkdir()
    (folder / "additional_chat_templates" / "tools.jinja").write_text("{{ tools }}")
    store = open_store(str(tmp_path / "store"))
    config = settings_of(folder, tmp_path / "store")
    read = open_tokenizer(config.tokenizer, store)
    kept = sorted(path for path in (tmp_path / "store").rglob("*") if path.is_file())
    shutil.rmtree(folder)
    again = settings_of(folder, tmp_path / "store")
    assert again.tokenizer == config.tokenizer and config.model.vocab_size == read.vocab_size
    opened = open_tokenizer(again.tokenizer, store)
    assert sorted(path for path in (tmp_path / "store").rglob("*") if path.is_file()) == kept
    assert (opened.id, opened.hash, opened.eot, opened.stop_ids) == (read.id, read.hash, read.eot, read.stop_ids)
    assert lists(opened.encode_batch(SAMPLE)) == lists(read.encode_batch(SAMPLE))
    assert opened.chat_template == CHAT_TEMPLATE
    opened.save(tmp_path / "out")
    assert (tmp_path / "out/tokenizer.json").read_bytes() == (folders["byte_level"] / "tokenizer.json").read_bytes()
    assert (tmp_path / "out/additional_chat_templates/tools.jinja").read_text() == "{{ tools }}"
    assert load_tokenizer_folder(tmp_path / "out").hash == read.hash


@pytest.mark.parametrize(
    "name", ["config.json", "model.safetensors", "modeling_evil.py", "additional_chat_templates/x.py"]
)
def test_a_tokenizer_of_the_store_brings_no_other_file_into_an_export(
    name: str, folders: dict[str, Path], tmp_path: Path
) -> None:
    """Whoever writes a tokenizer decides its files and its id alike: their hash alone does not keep others out."""
    store, config = open_store(str(tmp_path)), settings_of(folders["gemma"], tmp_path)
    read = open_tokenizer(config.tokenizer, store)
    assert isinstance(read, HFTokenizer)
    files = TokenizerFiles(Path(), {**read.files.content, name: b"evil"})
    hostile = tokenizer_id("x", files, read.text_may_be_special)
    for each, data in {**files.content, "skytrain.json": read.to_json()}.items():
        store.write(f"tokenizers/{hostile}/{each}", data)
    with pytest.raises(SkytrainError, match="is not a file of a tokenizer"):
        open_tokenizer(config.tokenizer, store, hostile)


def test_a_tokenizer_that_was_altered_in_the_store_is_refused(folders: dict[str, Path], tmp_path: Path) -> None:
    store, config = open_store(str(tmp_path)), settings_of(folders["gemma"], tmp_path)
    id_ = open_tokenizer(config.tokenizer, store).id
    store.write(f"tokenizers/{id_}/tokenizer_config.json", b"{}")
    with pytest.raises(SkytrainError, match="was altered"):
        open_tokenizer(config.tokenizer, store)


@pytest.mark.filterwarnings("ignore:fastokens does not serve", "ignore:the spelling of special tokens")
def test_a_pattern_that_matches_no_text_in_time_is_damage_of_the_tokenizer(pairs: dict[str, Any]) -> None:
    """Engines give up, as a panic of Rust, which is no Exception of Python."""
    ours: HFTokenizer = pairs["byte_level"][0]
    replaces = {"type": "Replace", "pattern": {"Regex": r"(x+)\1+y"}, "content": "z"}
    hostile = HFTokenizer("x-1", ours.files, {**ours.definition, "normalizer": replaces}, ours.rules)
    with pytest.raises(DamagedRecord, match="takes more time than engines allow") as caught:
        hostile.encode_batch(["x" * 3000])
    assert caught.value.exit_code == 9


@pytest.mark.filterwarnings("ignore:fastokens does not serve")
def test_text_becomes_special_tokens_where_that_is_asked_for(folders: dict[str, Path], tmp_path: Path) -> None:
    store = open_store(str(tmp_path))
    plain = open_tokenizer(settings_of(folders["sentencepiece_bpe"], tmp_path).tokenizer, store)
    asked = open_tokenizer(
        settings_of(folders["sentencepiece_bpe"], tmp_path, "tokenizer.text_may_be_special=true").tokenizer, store
    )
    assert 2 in asked.encode_batch(["a</s>b"])[0] and 2 not in plain.encode_batch(["a</s>b"])[0]
    assert asked.hash != plain.hash and asked.id != plain.id


def test_the_files_of_a_trained_tokenizer_read_data_that_the_tokenizer_itself_made(tmp_path: Path) -> None:
    trained = train_bpe(BPETokenizerConfig(kind="bpe", name="tiny", vocab_size=300, sample_bytes=10**6), [TEXT])
    trained.save(tmp_path)
    (tmp_path / "chat_template.jinja").write_text("{{ messages }}")
    theirs = load_tokenizer_folder(tmp_path)
    assert isinstance(theirs, HFTokenizer)
    assert (theirs.hash, theirs.eot, theirs.vocab_size) == (trained.hash, trained.eot, trained.vocab_size)
    assert lists(theirs.encode_batch(SAMPLE)) == lists(trained.encode_batch(SAMPLE))


@pytest.mark.parametrize("kind", ["byte_level", "sentencepiece_bpe", "gemma"])
def test_the_bytes_of_all_tokens_sum_to_those_of_the_text(pairs: dict[str, Any], kind: str) -> None:
    ours, _ = pairs[kind]
    for text in (TEXT, "a", "naïve 你好 <s>\n\n\t"):
        ids = [ours.eot, *ours.encode_documents([text])[0].tolist()]
        assert ours.byte_lengths[ids].sum() == len(text.encode())


def test_ids_may_lie_anywhere_and_decide_the_vocabulary_and_the_type_of_a_token(
    folders: dict[str, Path], tmp_path: Path
) -> None:
    folder = tmp_path / "far"
    shutil.copytree(folders["byte_level"], folder)
    config = json.loads((folder / "tokenizer_config.json").read_text())
    token = {"content": "<|far|>", "special": True, "normalized": False}
    config["added_tokens_decoder"] = {"70000": {**token, "lstrip": False, "rstrip": False, "single_word": False}}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    assert settings_of(folder, tmp_path).model.vocab_size == 70001
    tokenizer = load_tokenizer_folder(folder)
    assert tokenizer.vocab_size == 70001 and tokenizer.encode_batch(["a"])[0].dtype == np.uint32


def broken(folders: dict[str, Path], folder: Path, change: str) -> Path:
    shutil.copytree(folders["sentencepiece_bpe"], folder)
    if change == "empty":
        shutil.rmtree(folder)
        folder.mkdir()
    elif change == "slow":
        (folder / "tokenizer.json").rename(folder / "tokenizer.model")
    elif change == "damaged":
        (folder / "tokenizer.json").write_text('{"model": ')
    elif change == "no vocabulary":
        (folder / "tokenizer.json").write_text('{"version": "1.0"}')
    return folder


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("empty", r"tokenizer.name: .*t has no tokenizer.json\n  give the folder"),
        ("slow", r"tokenizer.name: .*only a slow tokenizer \(tokenizer.model\).*\n  convert it once"),
        ("damaged", r"tokenizer.name: .*tokenizer.json is damaged: .*JSON.*\n  download it again"),
        ("no vocabulary", r"tokenizer.name: .*tokenizer.json has no vocabulary.*\n  give the folder"),
    ],
)
def test_a_folder_that_cannot_be_used_is_one_message_with_the_fix(
    folders: dict[str, Path], tmp_path: Path, change: str, message: str
) -> None:
    with pytest.raises(ConfigError, match=message) as raised:
        settings_of(broken(folders, tmp_path / "t", change), tmp_path / "store")
    assert raised.value.exit_code == 2


def test_a_generation_config_adds_tokens_that_end_a_text_and_a_damaged_one_is_one_message(
    folders: dict[str, Path], tmp_path: Path
) -> None:
    folder = broken(folders, tmp_path / "t", "nothing")
    path = folder / "generation_config.json"
    without = load_tokenizer_folder(folder).stop_ids
    path.write_text(json.dumps({"eos_token_id": [7, None, -1, True, 10**6]}))
    assert load_tokenizer_folder(folder).stop_ids == without | {7}
    for damaged in ("{", "[1]"):
        path.write_text(damaged)
        with pytest.raises(SkytrainError, match=r"generation_config.json .*JSON.*\n  download it again"):
            load_tokenizer_folder(folder)


def test_a_vocabulary_larger_than_the_embedding_is_refused(folders: dict[str, Path], tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"model.vocab_size: 100 is smaller than the 431 tokens of tokenizer .*gemma"):
        settings_of(folders["gemma"], tmp_path, "model.vocab_size=100")


def test_a_hub_name_without_a_network_is_one_message(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "cache"))
    with pytest.raises(ConfigError, match=r"tokenizer.name: team/model: not a folder here.*\n  download it where"):
        settings_of("team/model", tmp_path)


def test_an_engine_with_other_ids_is_not_used_and_one_line_says_so(
    folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    tokenizer = load_tokenizer_folder(folders["gemma"])
    expected = load_tokenizer_folder(folders["gemma"]).encode_batch(SAMPLE)
    right = hf_encoders.fastokens_encoder
    monkeypatch.setattr(
        hf_encoders, "fastokens_encoder", lambda json_text: lambda texts: [ids[:-1] for ids in right(json_text)(texts)]
    )
    with pytest.warns(UserWarning, match="fastokens does not serve this tokenizer .other ids for .Hello") as told:
        ids = tokenizer.encode_batch(SAMPLE)
    assert len(told) == 1
    assert lists(ids) == lists(expected)


def test_a_tokenizer_is_read_where_transformers_refuses_the_configuration_of_its_model(tmp_path):
    """EXAONE 3.5: an architecture that transformers lacks, with positions that it checks all the same."""
    make_tokenizer_folder("byte_level", tmp_path)
    config = json.loads((tmp_path / "tokenizer_config.json").read_text()) | {"tokenizer_class": "GPT2Tokenizer"}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    plain = read_hf_tokenizer("a-1", read_tokenizer_files(tmp_path), text_may_be_special=False)
    scaling = {"factor": 8.0, "high_freq_factor": 4.0, "low_freq_factor": 1.0, "rope_type": "llama3"}
    described = {
        "architectures": ["ExaoneForCausalLM"],
        "auto_map": {"AutoConfig": "configuration_exaone.ExaoneConfig"},
        "model_type": "exaone",
        "max_position_embeddings": 32768,
        "rope_scaling": {**scaling, "original_max_position_embeddings": 8192},
    }
    (tmp_path / "config.json").write_text(json.dumps(described))
    found = read_hf_tokenizer("a-1", read_tokenizer_files(tmp_path), text_may_be_special=False)
    assert found.hash == plain.hash and found.encode_prompt("the store") == plain.encode_prompt("the store")


def test_a_tokenizer_config_names_no_other_file_of_this_computer(folders: dict[str, Path], tmp_path: Path) -> None:
    """transformers would read a GGUF file that it names in place of the tokenizer's own."""
    folder = Path(shutil.copytree(folders["gpt2" if "gpt2" in folders else "byte_level"], tmp_path / "evil"))
    config = json.loads((folder / "tokenizer_config.json").read_text())
    (tmp_path / "secret").write_text("mine")
    config |= {"tokenizer_class": "GPT2Tokenizer", "gguf_file": str(tmp_path / "secret"), "vocab_file": "/etc/passwd"}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    assert load_tokenizer_folder(folder).vocab_size > 0
