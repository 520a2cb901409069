"""Opens tokenizers: GPT-2's, one trained on the corpus, or any fast one of Hugging Face's; and keeps them in the store."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from ..config import ConfigError, HFTokenizerConfig, SkytrainError, StoreConfig, TokenizerConfig, build
from ..storage import MANIFEST_BYTES, NotFound, is_whole, open_store, read_object, read_text, read_whole, record_of
from .byte_level import ByteLevelBPE, gpt2, own_definition
from .decoding import StreamDecoder
from .hf_files import (
    TEMPLATE_FILE,
    TOKENIZER_FILE,
    TokenizerFiles,
    find_tokenizer_files,
    is_tokenizer_file,
    read_tokenizer_files,
    slug_of,
    tokenizer_id,
)
from .hf_tokenizer import HFTokenizer, read_hf_tokenizer

if TYPE_CHECKING:
    from ..storage import Store

FOLDER = "tokenizers"
DEFINITION = "skytrain.json"  # file of a Hugging Face tokenizer; written last, so it says that the files are complete


class Tokenizer(Protocol):
    """The tokenizer interface that other packages use."""

    name: str
    id: str  # its folder in the store
    vocab_size: int
    eot: int  # begins each document
    hash: str  # sha256 of everything that determines its ids

    @property
    def stop_ids(self) -> frozenset[int]: ...  # tokens that end a generated text
    @property
    def token_ids(self) -> dict[str, int]: ...  # bos_token_id, eos_token_id, pad_token_id, for Hugging Face's files
    @property
    def byte_lengths(self) -> np.ndarray: ...  # bytes of text that each token stands for
    @property
    def chat_template(self) -> str | None: ...

    def encode_batch(self, texts: list[str]) -> list[np.ndarray]: ...
    def encode_documents(self, texts: list[str]) -> list[np.ndarray]: ...
    def encode_prompt(self, prompt: str) -> list[int]: ...
    def decode(self, ids: Sequence[int] | np.ndarray) -> str: ...
    def stream(self, prompt: Sequence[int] = ()) -> StreamDecoder: ...
    def save(self, folder: str | Path) -> None: ...


def open_tokenizer(config: TokenizerConfig, store: Store, id: str | None = None) -> Tokenizer:
    """Open a tokenizer; `id` selects among several of the same name in the store.

    One of Hugging Face's is read from its folder or the hub the first time, and from the store afterwards.
    """
    if id is not None and id != config.name and store.exists(f"{FOLDER}/{id}/{DEFINITION}"):
        return _open_stored(store, id)
    if config.kind == "gpt2":
        return gpt2()
    if isinstance(config, HFTokenizerConfig):
        return _open_hf(config, store, id or config.id)
    id = id or _find_id(store, config.name, f"`skytrain prepare tokenizer={config.name}` trains one")
    key = f"{FOLDER}/{id}/{TOKENIZER_FILE}"
    with record_of(store, key):
        tokenizer = ByteLevelBPE(id.rpartition("-")[0], read_text(store, key, MANIFEST_BYTES))
    if tokenizer.id != id:
        raise SkytrainError(f"{store.url(key)} was altered: its hash is {tokenizer.hash[:12]}")
    return tokenizer


def is_stored(config: TokenizerConfig, store: Store, id: str | None = None) -> bool:
    """Return whether `open_tokenizer` reads nothing outside the store."""
    if not isinstance(config, HFTokenizerConfig):
        return True
    return store.exists(f"{FOLDER}/{id or config.id}/{DEFINITION}")


def has_tokenizer(config: TokenizerConfig, store: Store, id: str) -> bool:
    """Return whether `open_tokenizer` finds the files of this tokenizer in the store, or needs none."""
    if config.kind == "gpt2":
        return True
    return any(store.exists(f"{FOLDER}/{id}/{name}") for name in (DEFINITION, TOKENIZER_FILE))


def read_tokenizer_settings(settings: Mapping[str, Any], store_settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of a Hugging Face tokenizer that come from its files: its vocabulary and its id.

    `tokenizer.name` is a folder, a tokenizer in the store, or a name on the hub, in this order. So a machine that
    lacks the folder finds what `prepare` has stored.
    """
    name = str(settings["name"])
    special = bool(settings.get("text_may_be_special", False))
    store = open_store(build(StoreConfig, store_settings, "store"))
    try:
        if not Path(name).expanduser().is_dir():
            stored = {id_: _stored_settings(store, id_) for id_ in _matching(store, slug_of(name), name)}
            known = [id_ for id_, kept in stored.items() if kept and kept["text_may_be_special"] == special]
            if len(known) == 1:
                return _settings(known[0], stored[known[0]]["vocab_size"], special)
            if known:
                raise SkytrainError(_several(store, name, known))
        files = find_tokenizer_files(name)
        return _settings(tokenizer_id(name, files, special), files.vocab_size, special)
    except SkytrainError as error:
        problem, _, hint = str(error).partition("\n")
        raise ConfigError("tokenizer.name", problem, hint=hint.strip() or None) from None


def describe_begin(tokenizer: Tokenizer) -> str:
    """Return which token begins a document, for the tables that a command prints first."""
    return f"a document begins with {tokenizer.decode([tokenizer.eot])} ({tokenizer.eot})"


def load_tokenizer_folder(folder: Path) -> Tokenizer:
    """Load the tokenizer of an exported or downloaded folder."""
    files = read_tokenizer_files(folder)
    try:
        # What Skytrain exported needs no transformers.
        definition = own_definition(files.parsed(TOKENIZER_FILE))
        if definition is not None and not _has_template(files):
            return ByteLevelBPE(folder.name, json.dumps(definition, ensure_ascii=False))
        return read_hf_tokenizer(tokenizer_id(str(folder), files, False), files, text_may_be_special=False)
    except SkytrainError:
        raise
    except Exception as error:  # whoever made the folder decides what its files hold
        raise SkytrainError(
            f"{folder} has files that describe no tokenizer: {error!r:.200}\n  download it again"
        ) from None


def store_tokenizer(tokenizer: ByteLevelBPE | HFTokenizer, store: Store) -> str:
    """Store a tokenizer if it is new, and return its id. The same training and the same files give the same id."""
    folder = f"{FOLDER}/{tokenizer.id}"
    if isinstance(tokenizer, ByteLevelBPE):
        store.create(f"{folder}/{TOKENIZER_FILE}", tokenizer.definition.encode())
    elif not store.exists(f"{folder}/{DEFINITION}"):
        for name, data in tokenizer.files.content.items():
            store.create(f"{folder}/{name}", data)
        store.create(f"{folder}/{DEFINITION}", tokenizer.to_json())
    return tokenizer.id


def stored_vocab_size(store: Store, id: str) -> int:
    """Return the vocabulary size of a tokenizer in the store, including tokens that text never becomes."""
    kept = _stored_settings(store, id)
    if kept:
        return int(kept["vocab_size"])
    key = f"{FOLDER}/{id}/{TOKENIZER_FILE}"
    with record_of(store, key):
        return len(read_object(store, key, at_most=MANIFEST_BYTES)["model"]["vocab"]) + 1


def _stored_settings(store: Store, id: str) -> dict[str, Any]:
    """Return what is kept next to the files of a Hugging Face tokenizer; empty for a trained one."""
    key = f"{FOLDER}/{id}/{DEFINITION}"
    try:
        with record_of(store, key):
            kept = read_object(store, key, at_most=MANIFEST_BYTES)
            if not is_whole(kept["vocab_size"]) or not isinstance(kept["text_may_be_special"], bool):
                raise TypeError("it does not describe a tokenizer")
    except NotFound:
        return {}
    return kept


def _settings(id: str, vocab_size: int, text_may_be_special: bool) -> dict[str, Any]:
    return {"id": id, "vocab_size": vocab_size, "text_may_be_special": text_may_be_special}


def _open_hf(config: HFTokenizerConfig, store: Store, id: str) -> HFTokenizer:
    if store.exists(f"{FOLDER}/{id}/{DEFINITION}"):
        return _open_stored(store, id)
    files = find_tokenizer_files(config.name)
    current = tokenizer_id(config.name, files, config.text_may_be_special)
    if current != id:
        raise SkytrainError(
            f"{store.url(FOLDER)} has no tokenizer {id}, and the files of {config.name} are now others ({current})\n"
            "  give the folder that the data was prepared with, or prepare it again"
        )
    tokenizer = read_hf_tokenizer(id, files, text_may_be_special=config.text_may_be_special)
    store_tokenizer(tokenizer, store)
    return tokenizer


def _open_stored(store: Store, id: str) -> HFTokenizer:
    folder = f"{FOLDER}/{id}"
    definition = read_whole(store, f"{folder}/{DEFINITION}", MANIFEST_BYTES)
    names = [stat.key.removeprefix(f"{folder}/") for stat in store.list(folder)]
    if others := [name for name in names if name != DEFINITION and not is_tokenizer_file(name)]:
        # An export has all files of its tokenizer: another config.json or a program must not come with them.
        raise SkytrainError(f"{store.url(folder)} was altered: {others[0]!r:.80} is not a file of a tokenizer")
    content = {name: read_whole(store, f"{folder}/{name}", MANIFEST_BYTES) for name in names if name != DEFINITION}
    with record_of(store, f"{folder}/{DEFINITION}"):
        tokenizer = HFTokenizer.from_json(id, TokenizerFiles(Path(folder), content), definition)
    if tokenizer_id(id, tokenizer.files, tokenizer.text_may_be_special).rpartition("-")[2] != id.rpartition("-")[2]:
        raise SkytrainError(f"{store.url(folder)} was altered: its files have another hash than its name says")
    return tokenizer


def _find_id(store: Store, name: str, hint: str) -> str:
    known = _matching(store, name, name)
    if not known:
        raise SkytrainError(f"{store.url(FOLDER)} has no tokenizer {name!r}\n  {hint}")
    if len(known) > 1:
        raise SkytrainError(_several(store, name, known))
    return known[0]


def _matching(store: Store, slug: str, id: str) -> list[str]:
    folders = store.folders(FOLDER)
    return [each for each in folders if each == id] or [each for each in folders if each.rpartition("-")[0] == slug]


def _several(store: Store, name: str, known: list[str]) -> str:
    return (
        f"{store.url(FOLDER)} has several tokenizers {name!r}: {', '.join(known)}\n"
        f"  choose one: {shlex.quote(f'tokenizer.name={known[0]}')}"
    )


def _has_template(files: TokenizerFiles) -> bool:
    return "chat_template.jinja" in files.content or "chat_template" in files.parsed("tokenizer_config.json")


def stored_chat_template(store: Store, splits: Iterable[str]) -> str | None:
    """Return the chat template that rendered the first of these splits of conversations; None if all are text."""
    for split in splits:
        if not split.startswith("tokens/"):  # files that another program wrote
            continue
        try:
            return read_text(store, f"{split.rpartition('/')[0]}/{TEMPLATE_FILE}")
        except NotFound:
            continue
    return None


def with_chat_template(tokenizer: Tokenizer, template: str | None) -> Tokenizer:
    """Return the tokenizer with the chat template that its model was trained with."""
    if template is None or not isinstance(tokenizer, HFTokenizer) or tokenizer.chat_template == template:
        return tokenizer
    return tokenizer.with_chat_template(template)
