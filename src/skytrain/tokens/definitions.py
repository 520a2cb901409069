"""Reads definitions of the `tokenizers` library, and rewrites them without changing the ids of any text."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

# Unicode guarantees that these code points are never characters, so no text contains a run of them by accident.
HIDDEN = "\ufdd0\ufdd1\ufdd2"
METASPACE = "▁"


def plain_definition(definition: Mapping[str, Any]) -> dict[str, Any]:
    """Return a definition in which no text spells a special token; all ids stay.

    Leaving special tokens out of the search for added tokens is not enough: a Unigram model, or a BPE model that
    looks up whole words first, finds them in its own vocabulary.
    """
    added = definition["added_tokens"]
    hidden = {token["content"]: HIDDEN + token["content"] for token in added if token["special"]}

    def shown(piece: str) -> str:
        return hidden.get(piece, piece)

    model = dict(definition["model"])
    if isinstance(model["vocab"], dict):
        model["vocab"] = {shown(piece): id_ for piece, id_ in model["vocab"].items()}
    else:
        model["vocab"] = [[shown(piece), score] for piece, score in model["vocab"]]
    if "merges" in model:
        pairs = (pair.split(" ") if isinstance(pair, str) else pair for pair in model["merges"])
        model["merges"] = [[a, b] for a, b in pairs if not (a in hidden or b in hidden or a + b in hidden)]
    if model.get("unk_token") is not None:
        model["unk_token"] = shown(model["unk_token"])
    tokens = [{**token, "content": shown(token["content"])} for token in added]
    return {**definition, "added_tokens": tokens, "model": model, "post_processor": None}


def without_metaspace(definition: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return a BPE definition whose Metaspace splitting, which keeps a text whole, is a normalizer.

    The caller adds the space before a text, see `begins_with_space`. None where that is not the same.
    """
    splitting = definition.get("pre_tokenizer") or {}
    # An added token in the text would begin a section that gets no space, or one more.
    visible = [token for token in definition["added_tokens"] if not token["content"].startswith(HIDDEN)]
    if splitting.get("type") != "Metaspace" or splitting.get("split", True) or definition["normalizer"] or visible:
        return None
    if splitting["replacement"] != METASPACE:
        return None
    replacement = {"type": "Replace", "pattern": {"String": " "}, "content": METASPACE}
    return {**definition, "pre_tokenizer": None, "normalizer": replacement}


def begins_with_space(definition: Mapping[str, Any]) -> bool:
    """Return whether Metaspace splitting puts a space before a text."""
    splitting = definition.get("pre_tokenizer") or {}
    return splitting.get("type") == "Metaspace" and splitting.get("prepend_scheme", "always") != "never"


def pieces_of(definition: Mapping[str, Any]) -> dict[str, int]:
    """Return the pieces of the model with their ids. A Unigram model lists them in the order of their ids."""
    vocabulary = definition["model"]["vocab"]
    return vocabulary if isinstance(vocabulary, dict) else {piece[0]: id_ for id_, piece in enumerate(vocabulary)}


def is_byte_level(definition: Mapping[str, Any]) -> bool:
    """Return whether each letter of a piece stands for a byte."""
    return '"ByteLevel"' in json.dumps(definition["decoder"])


def piece_texts(definition: Mapping[str, Any]) -> list[str]:
    """Return the text that each piece of the model stands for, where that is whole characters."""
    pieces = [piece for piece in pieces_of(definition) if not piece.startswith(HIDDEN)]
    if not is_byte_level(definition):
        return [piece.replace(METASPACE, " ") for piece in pieces]
    byte_of = {letter: byte for byte, letter in byte_letters().items()}
    texts = []
    for piece in pieces:
        with contextlib.suppress(KeyError, UnicodeDecodeError):  # a piece of another kind, or a part of a character
            texts.append(bytes(byte_of[letter] for letter in piece).decode())
    return texts


@lru_cache(maxsize=1)
def byte_letters() -> dict[int, str]:
    """Return GPT-2's printable character for each byte: itself if printable, else the next one from U+0100."""
    shown = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    hidden = [byte for byte in range(256) if byte not in set(shown)]
    return {byte: chr(byte) for byte in shown} | {byte: chr(256 + i) for i, byte in enumerate(hidden)}
