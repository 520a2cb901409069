"""Mixed real text that every Python environment has: source code, documentation, other scripts, special tokens."""

from __future__ import annotations

import random
import sysconfig
import unicodedata
from collections.abc import Iterator
from itertools import cycle
from pathlib import Path

SPELLED = (
    "<s>",
    "</s>",
    "<unk>",
    "<bos>",
    "<|eot_id|>",
    "<|begin_of_text|>",
    "<start_of_turn>",
    "<0x0A>",
    "<|endoftext|>",
)
DOCUMENT_CHARS = 4000
SCRIPTS = ("GREEK", "CYRILLIC", "ARABIC", "HEBREW", "HIRAGANA", "CJK UNIFIED", "HANGUL SYLLABLE", "THAI", "DEVANAGARI")


def mixed_text(size: int, *, spell_special: bool = True) -> list[str]:
    """Return documents of `size` bytes in all: the same ones in the same environment.

    A tokenizer is trained without the spelling of special tokens: it would learn them as ordinary pieces.
    """
    texts, left = [], size
    for number, text in enumerate(_documents()):
        if spell_special and number % 5 == 0:  # inside words, between them, at the ends of lines
            token = SPELLED[number // 5 % len(SPELLED)]
            text = text[:100] + token + text[100:200] + f" {token} " + text[200:] + token
        texts.append(text)
        left -= len(text.encode())
        if left <= 0:
            return texts
    raise AssertionError("unreachable: documents repeat")


def _documents() -> Iterator[str]:
    files = [
        path
        for folder in {sysconfig.get_paths()[name] for name in ("stdlib", "purelib")}
        for pattern in ("*.py", "*/*.py", "*/METADATA", "*/*/*.py")
        for path in sorted(Path(folder).glob(pattern))
    ]
    source = (
        text[start : start + DOCUMENT_CHARS]
        for path in cycle(files)
        for text in [path.read_text(encoding="utf-8", errors="ignore")]
        for start in range(0, len(text), DOCUMENT_CHARS)
    )
    for number, (text, other) in enumerate(zip(source, _other_scripts(), strict=False)):
        yield text
        if number % 10 == 0:
            yield other


def _other_scripts() -> Iterator[str]:
    """Random words of other scripts, with emoji, combining marks and odd spaces between them."""
    letters = {
        script: [chr(code) for code in range(0x370, 0xD7A4) if unicodedata.name(chr(code), "").startswith(script)]
        for script in SCRIPTS
    }
    odd = [" ", "  ", "\n", "\t", "\u00a0", "\u3000", " 👩‍👩‍👧 ", " 🏳️‍🌈", "e\u0301", "\u200b", "¼ ", " 10,000.5 ", "▁"]
    choose = random.Random(0)
    while True:
        words = []
        for _ in range(300):
            script = choose.choice(SCRIPTS)
            words += ["".join(choose.choices(letters[script], k=choose.randint(1, 9))), choose.choice(odd)]
        yield "".join(words)
