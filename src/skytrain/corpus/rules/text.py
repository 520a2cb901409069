"""Stages that change or judge a text without counting: spelling of the characters, addresses, personal data, language."""

from __future__ import annotations

import re
import unicodedata
from typing import Any, Optional

from .reference import EXOTIC_SPACES, LANGUAGE_CHARS, host_of

CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\ufeff\u200b\u00ad\ufffe\uffff]")
BLANK_LINES = re.compile("\n{4,}")
EMAIL = re.compile(r"[A-Za-z0-9._%+-]+@[A-Za-z0-9-]+(?:\.[A-Za-z0-9-]+)*\.[A-Za-z]{2,}")
OCTET = "(?:25[0-5]|2[0-4][0-9]|1[0-9][0-9]|[1-9]?[0-9])"
IP = re.compile(rf"(?<![\d.])(?:{OCTET}\.){{3}}{OCTET}(?![\d.]*\d)")
# Begins with a plain character, which makes the search several times faster.
IP_INSIDE = re.compile(r"\.\d{1,3}\.\d{1,3}\.\d")
CONTROL_BYTES = bytes(byte for byte in range(32) if byte not in b"\t\n") + b"\x7f"
UPPER_CONTROL = re.compile(b"\xc2[\x80-\x9f]")  # U+0080 to U+009F in UTF-8
UNSEEN = ("\ufeff", "\u200b", "\u00ad", "\ufffe", "\uffff")
EMAIL_STAND_IN = "email@example.com"
IP_STAND_IN = "192.0.2.1"  # reserved for documentation, so it is nobody's


def normalize(text: str, settings: Any) -> str:
    if settings.nfc and not text.isascii() and not unicodedata.is_normalized("NFC", text):
        text = unicodedata.normalize("NFC", text)
    if settings.whitespace:
        if "\r" in text:
            text = text.replace("\r\n", "\n").replace("\r", "\n")
        if not text.isascii():
            text = text.replace("\u2028", "\n").replace("\u2029", "\n\n")
            for space in (
                EXOTIC_SPACES
            ):  # each a quick search that mostly finds nothing; a set of characters is searched many times slower
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
    """Quick and never wrong about "no": deleting from bytes is many times faster than searching a text for a set of characters."""
    encoded = text.encode()
    if len(encoded.translate(None, CONTROL_BYTES)) < len(encoded):
        return True
    return not text.isascii() and (
        UPPER_CONTROL.search(encoded) is not None or any(letter in text for letter in UNSEEN)
    )


def url_reasons(urls: list[Optional[str]], settings: Any) -> list[Optional[str]]:  # noqa: UP045
    domains = {domain.lower() for domain in settings.blocked_domains}
    words = [word.lower() for word in settings.blocked_words]
    return [_url_reason(url, domains, words) if url else None for url in urls]


def _url_reason(url: str, domains: set[str], words: list[str]) -> str | None:
    labels = host_of(url).split(".") if domains else []
    if any(".".join(labels[i:]) in domains for i in range(len(labels))):
        return "domain"
    lowered = url.lower()
    return "word" if any(word in lowered for word in words) else None


def hide_personal(text: str, settings: Any) -> str:
    """E-mail addresses and IPv4 addresses replaced by ones that are nobody's."""
    if settings.emails and "@" in text:
        text = "\n".join([EMAIL.sub(EMAIL_STAND_IN, line) if "@" in line else line for line in text.split("\n")])
    if settings.ips and IP_INSIDE.search(text):
        text = IP.sub(IP_STAND_IN, text)
    return text


def language_reason(text: str, is_english: bool, settings: Any) -> str | None:
    """`is_english` where the text's words say so already: the detector takes longer than all other rules together."""
    from resiliparse.parse.lang import detect_fast

    language = "en" if is_english else detect_fast(text[:LANGUAGE_CHARS], cutoff=settings.max_rank)[0]
    return None if language in settings.keep else language
