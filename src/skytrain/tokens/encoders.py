"""Engines that encode text: fastokens if its ids match the reference implementation's, else the reference."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import metadata
from itertools import pairwise
from typing import Any

import numpy as np

from ..config import MissingExtra
from ..storage import DamagedRecord

END_OF_TEXT = "<|endoftext|>"
GPT2_PATTERN = r"""'(?:[sdmt]|ll|ve|re)| ?\p{L}++| ?\p{N}++| ?[^\s\p{L}\p{N}]++|\s++$|\s+(?!\S)|\s"""
# Cases that tokenizers get wrong: white space, contractions, scripts, joined emoji, control characters, and the
# spelling of a special token.
TRICKY = (
    "Hello, world! It's 3.14159 and they'll say we've 10,000 I'Ds.",
    "  two  three   four    \t\ttabs\n\n\nlines \n \r\n end   ",
    "def f(x):\n\n        return {'a': [1, 2], \"b\": None}  # ok\n\t\n",
    "naïve café Ω≈ç√∫ Привет мир 你好，世界 こんにちは שלום مرحبا ไทย हिन्दी",
    "👩‍👩‍👧‍👦 🏳️‍🌈 e\u0301 \u00a0\u2003\u3000x\ufeff\u200b \x00\x01\x7f\x85\u2028",
    "<|endoftext|> a<|endoftext|>b <|endoftext|><|endoftext|>",
    "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa" * 3,
    "",
    " ",
    "٣٤٥ ½ ² Ⅷ x²+y² 'S 'LL ''' '",
)

Encode = Callable[[list[str]], list[np.ndarray]]


@contextmanager
def panics() -> Iterator[None]:
    """Report the panic of an engine as damage: whoever made a tokenizer chooses its patterns, and some match no text in time."""
    try:
        yield
    except BaseException as error:
        if type(error).__name__ != "PanicException":  # Rust's, which is no Exception and has no module to import
            raise
        raise DamagedRecord(
            f"the tokenizer cannot be used with this text: {error}\n"
            "  one of its patterns takes more time than engines allow: choose another tokenizer"
        ) from None


def fastest_encoder(definition: str, reference: Encode) -> Encode:
    """Return fastokens if it is installed and matches `reference` on every tricky text.

    Otherwise warn and return `reference`.
    """
    try:
        fast = fastokens_encoder(definition)
    except ImportError:
        warnings.warn(
            "fastokens is not installed: tokenizing runs about ten times slower (pip install 'skytrain[data]')",
            stacklevel=2,
        )
        return reference
    expected = reference(list(TRICKY))
    encoded = fast(list(TRICKY))
    wrong = [text for text, a, b in zip(TRICKY, expected, encoded, strict=True) if not np.array_equal(a, b)]
    if wrong:
        warnings.warn(
            f"fastokens {metadata.version('fastokens')} gives other ids than the reference for {wrong[0]!r}: using the slower one",
            stacklevel=2,
        )
        return reference
    return fast


def fastokens_encoder(definition: str) -> Encode:
    import fastokens

    engine = fastokens.Tokenizer.from_json_str(definition)  # without added tokens, so no text encodes to one

    def encode(texts: list[str]) -> list[np.ndarray]:
        with panics():
            flat, offsets = engine.encode_batch_flat(texts)
        ids = np.frombuffer(flat, np.uint32)
        ends = np.frombuffer(offsets, np.uint64).tolist()
        return [ids[start:end] for start, end in pairwise(ends)]

    return encode


def tiktoken_encoder(pieces: list[bytes]) -> Encode:
    """Return tiktoken's GPT-2 encoder. `pieces` are ordered by id, which for GPT-2 is also the merge order."""
    try:
        import tiktoken
    except ImportError:
        raise MissingExtra("tiktoken", "data") from None
    ranks = {piece: rank for rank, piece in enumerate(pieces)}
    encoding = tiktoken.Encoding(
        "gpt2",
        pat_str=GPT2_PATTERN,
        mergeable_ranks=ranks,
        special_tokens={END_OF_TEXT: len(ranks)},
        explicit_n_vocab=len(ranks) + 1,
    )
    return lambda texts: [np.array(encoding.encode_ordinary(text), np.uint32) for text in texts]


def tokenizers_engine(definition: str) -> Any:
    try:
        from tokenizers import Tokenizer as Engine
    except ImportError:
        raise MissingExtra("tokenizers", "data") from None
    return Engine.from_str(definition)


def tokenizers_encoder(definition: str, *, plain: bool = False) -> Encode:
    """Return the encoder of `tokenizers`; `plain` encodes the spelling of special tokens as ordinary text."""
    engine = tokenizers_engine(definition)
    engine.encode_special_tokens = plain

    def encode(texts: list[str]) -> list[np.ndarray]:
        with panics():
            encoded = engine.encode_batch_fast(texts, add_special_tokens=False)
        return [np.array(encoding.ids, np.uint32) for encoding in encoded]

    return encode
