"""Normalizes texts: Unicode NFC, no control characters, plain spaces and line ends."""

from __future__ import annotations

import re
import unicodedata
from typing import Any

from .registry import CleaningRule, Reasons, RuleBatch

EXOTIC_SPACES = "\u00a0\u1680\u2000\u2001\u2002\u2003\u2004\u2005\u2006\u2007\u2008\u2009\u200a\u202f\u205f\u3000"
CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\ufeff\u200b\u00ad\ufffe\uffff]")
BLANK_LINES = re.compile("\n{4,}")
CONTROL_BYTES = bytes(byte for byte in range(32) if byte not in b"\t\n") + b"\x7f"
UPPER_CONTROL = re.compile(b"\xc2[\x80-\x9f]")  # U+0080 to U+009F in UTF-8
UNSEEN = ("\ufeff", "\u200b", "\u00ad", "\ufffe", "\uffff")


def is_control(letter: str) -> bool:
    """Return whether a character is a control character or invisible: byte order mark, zero-width space, soft hyphen.

    Joiners are kept, because scripts and emoji need them.
    """
    return unicodedata.category(letter) == "Cc" or letter in "\ufeff\u200b\u00ad\ufffe\uffff"


def normalize(text: str, settings: Any) -> str:
    if settings.nfc and not text.isascii() and not unicodedata.is_normalized("NFC", text):
        text = unicodedata.normalize("NFC", text)
    if settings.whitespace:
        if "\r" in text:
            text = text.replace("\r\n", "\n").replace("\r", "\n")
        if not text.isascii():
            text = text.replace("\u2028", "\n").replace("\u2029", "\n\n")
            # One quick search for each, which mostly finds nothing; searching for a set of characters is far slower.
            for space in EXOTIC_SPACES:
                text = text.replace(space, " ")
    if settings.control_characters and _has_control(text):
        text = CONTROL.sub("", text)
    if settings.whitespace:
        if " \n" in text or "\t\n" in text or text.endswith((" ", "\t")):
            text = "\n".join([line.rstrip(" \t") for line in text.split("\n")])
        if "\n\n\n\n" in text:
            text = BLANK_LINES.sub("\n\n\n", text)
        text = text.strip("\n")
    return text


def _has_control(text: str) -> bool:
    """Return whether the text may have control characters. True may be wrong, False never is.

    Deleting from bytes is many times faster than searching a text for a set of characters.
    """
    encoded = text.encode()
    if len(encoded.translate(None, CONTROL_BYTES)) < len(encoded):
        return True
    return not text.isascii() and (
        UPPER_CONTROL.search(encoded) is not None or any(letter in text for letter in UNSEEN)
    )


def apply(batch: RuleBatch) -> tuple[list[str], Reasons]:
    from .tidy import untidy  # loads numba

    settings = batch.data.cleaning.normalize
    changed = [
        normalize(text, settings) if is_untidy else text
        for text, is_untidy in zip(batch.texts, untidy(batch.texts).tolist(), strict=True)
    ]
    return changed, [None] * len(changed)


RULE = CleaningRule(apply, changes_texts=True)
