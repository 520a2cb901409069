"""The rules in plain Python, one document at a time: the definition that the compiled rules must match.

Words are separated by white space. Lines are separated by line feeds and stripped; blank lines are ignored.
Paragraphs are separated by two or more line feeds.
"""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Callable
from string import ascii_letters as LETTERS, digits as DIGITS
from typing import Any

from skytrain.corpus.characters import CLOSERS, SENTENCE_ENDS, TERMINALS
from skytrain.corpus.rules.language import LANGUAGE_CHARS
from skytrain.corpus.rules.normalize import is_control
from skytrain.corpus.rules.scan import POLICY_PHRASES
from skytrain.corpus.rules.tidy import ENGLISH_WORDS
from skytrain.corpus.rules.urls import host_of

STOP_WORDS = {"the", "be", "to", "of", "and", "that", "have", "with"}


def normalize(text: str, settings: Any) -> str:
    if settings.nfc:
        text = unicodedata.normalize("NFC", text)
    if settings.whitespace:
        text = text.replace("\r\n", "\n").replace("\r", "\n").replace("\u2028", "\n").replace("\u2029", "\n\n")
        text = "".join(" " if unicodedata.category(letter) == "Zs" else letter for letter in text)
    if settings.control_characters:
        text = "".join(letter for letter in text if letter in "\n\t" or not is_control(letter))
    if settings.whitespace:
        text = "\n".join(line.rstrip(" \t") for line in text.split("\n"))
        while "\n\n\n\n" in text:
            text = text.replace("\n\n\n\n", "\n\n\n")
        text = text.strip("\n")
    return text


def english(text: str, share: float) -> bool:
    words = word_runs(text[:LANGUAGE_CHARS])
    return bool(words) and sum(word in ENGLISH_WORDS for word in words) >= share * len(words)


def language(text: str, settings: Any) -> str | None:
    """Return why the text is removed: its language, if that is not one to keep."""
    from resiliparse.parse.lang import detect_fast

    if english(text, settings.english_words):
        language = "en"
    else:
        language, _ = detect_fast(text[:LANGUAGE_CHARS], cutoff=settings.max_rank)
    return None if language in settings.keep else language


def url(address: str | None, settings: Any) -> str | None:
    """Return why a document from this URL is removed: a blocked domain or parent domain, or a blocked word."""
    if not address:
        return None
    host = host_of(address)
    for domain in settings.blocked_domains:
        if host == domain.lower() or host.endswith("." + domain.lower()):
            return "domain"
    return "word" if any(word.lower() in address.lower() for word in settings.blocked_words) else None


def hide_personal(text: str, settings: Any) -> str:
    """Replace each e-mail address and IPv4 address, from left to right, by a reserved one."""
    if settings.emails:
        text = _replace_each(text, _email_end, "email@example.com")
    return _replace_each(text, _ip_end, "192.0.2.1") if settings.ips else text


def lines_of(text: str) -> list[str]:
    return [line.strip() for line in text.split("\n") if line.strip()]


def paragraphs_of(text: str) -> list[str]:
    return [part.strip() for part in re.split(r"\n{2,}", text) if part.strip()]


def duplicates(pieces: list[str]) -> tuple[int, int]:
    """Return the number of repeated pieces, and their characters."""
    seen: set[str] = set()
    count = chars = 0
    for piece in pieces:
        if piece in seen:
            count += 1
            chars += len(piece)
        seen.add(piece)
    return count, chars


def top_ngram_chars(words: list[str], n: int) -> int:
    """Return the characters of the most frequent n-gram, the earliest of several; 0 if none occurs twice."""
    grams = Counter(" ".join(words[i : i + n]) for i in range(len(words) - n + 1))
    if not grams:
        return 0
    gram, count = grams.most_common(1)[0]
    return len(gram) * count if count > 1 else 0


def duplicate_ngram_chars(words: list[str], n: int) -> int:
    seen: set[tuple[str, ...]] = set()
    chars = i = 0
    while i < len(words) - n + 1:
        gram = tuple(words[i : i + n])
        if gram in seen:
            chars += sum(map(len, gram))
            i += n
        else:
            seen.add(gram)
            i += 1
    return chars


def gopher_repetition(text: str, settings: Any) -> str | None:
    lines = lines_of(text)
    paragraphs = paragraphs_of(text)
    words = text.split()
    line_count, line_chars = duplicates(lines)
    paragraph_count, paragraph_chars = duplicates(paragraphs)
    size = max(1, len(text))
    if line_count / max(1, len(lines)) > settings.max_duplicate_lines:
        return "duplicate_lines"
    if paragraph_count / max(1, len(paragraphs)) > settings.max_duplicate_paragraphs:
        return "duplicate_paragraphs"
    if line_chars / size > settings.max_duplicate_line_chars:
        return "duplicate_line_chars"
    if paragraph_chars / size > settings.max_duplicate_paragraph_chars:
        return "duplicate_paragraph_chars"
    for n, limit in zip((2, 3, 4), settings.max_top_ngram_chars, strict=True):
        if top_ngram_chars(words, n) / size > limit:
            return f"top_{n}gram"
    for n, limit in zip(range(5, 11), settings.max_duplicate_ngram_chars, strict=True):
        if duplicate_ngram_chars(words, n) / size > limit:
            return f"duplicate_{n}gram"
    return None


def gopher_quality(text: str, settings: Any) -> str | None:
    words = text.split()
    lines = lines_of(text)
    real = [word for word in words if any(map(str.isalnum, word))]
    if not settings.min_words <= len(real) <= settings.max_words:
        return "words"
    mean = sum(map(len, real)) / max(1, len(real))
    if not settings.min_mean_word_chars <= mean <= settings.max_mean_word_chars:
        return "mean_word_chars"
    if text.count("#") / max(1, len(words)) > settings.max_hashes_per_word:
        return "hashes"
    if (text.count("...") + text.count("…")) / max(1, len(words)) > settings.max_ellipses_per_word:
        return "ellipses"
    if sum(line.startswith(("•", "-")) for line in lines) / max(1, len(lines)) > settings.max_bullet_lines:
        return "bullet_lines"
    if sum(line.endswith(("...", "…")) for line in lines) / max(1, len(lines)) > settings.max_ellipsis_lines:
        return "ellipsis_lines"
    if sum(any(map(str.isalpha, word)) for word in words) / max(1, len(words)) < settings.min_letter_words:
        return "letter_words"
    if len(STOP_WORDS.intersection(words)) < settings.min_stop_words:
        return "stop_words"
    return None


def sentences_in(line: str) -> int:
    """Return the number of words that end a sentence, and one more if text follows the last of them."""
    ends = [word[:1] + word[1:].rstrip(CLOSERS) for word in line.split()]
    finished = [end.endswith(tuple(SENTENCE_ENDS)) for end in ends]
    return sum(finished) + (not finished[-1])


def c4(text: str, settings: Any) -> tuple[str, str | None]:
    """Return the text without the removed lines, and why the document is removed, if it is.

    The checks are in the order of datatrove's: a line that is dropped removes no document.
    """
    kept = []
    sentences = 0
    for line in lines_of(text):
        if max(map(len, line.split())) > settings.max_word_chars or len(line.split()) < settings.min_words_per_line:
            continue
        if settings.citations:
            line = re.sub(r"\[(?:\d*|edit|citation needed)\]", "", line).strip()
        if not line or (settings.terminal_punctuation and not ends_in_mark(line)):
            continue
        lowered = simple_lower(line)
        if settings.lorem_ipsum and "lorem ipsum" in lowered:
            return text, "lorem_ipsum"
        if settings.javascript_lines and "javascript" in lowered:
            continue
        if settings.curly_bracket and "{" in line:
            return text, "curly_bracket"
        if settings.policy_lines and any(phrase in lowered for phrase in POLICY_PHRASES):
            continue
        sentences += sentences_in(line)
        kept.append(line)
    return "\n".join(kept), "sentences" if sentences < settings.min_sentences else None


def ends_in_mark(line: str) -> bool:
    return line.endswith(tuple(TERMINALS)) and not line.endswith("...")


def fineweb(text: str, settings: Any) -> str | None:
    lines = lines_of(text)
    words = text.split()
    if not lines:
        return "empty"
    if sum(line.endswith(tuple(TERMINALS)) for line in lines) / len(lines) < settings.min_terminal_lines:
        return "terminal_lines"
    if sum(len(line) <= settings.short_line_chars for line in lines) / len(lines) > settings.max_short_lines:
        return "short_lines"
    if duplicates(lines)[1] / (len(text) - text.count("\n")) > settings.max_duplicate_line_chars:
        return "duplicate_line_chars"
    if text.count("\n") / len(words) > settings.max_newlines_per_word:
        return "newlines"
    return None


def shingles(text: str, width: int = 5) -> set[tuple[str, ...]]:
    """Return the shingles by which near-duplicates are compared: runs of `width` words of letters and digits."""
    words = word_runs(text)
    return {tuple(words[i : i + width]) for i in range(max(1, len(words) - width + 1))} if words else set()


def simple_lower(text: str) -> str:
    """Lower-case a text without changing its length; `CharacterTables.lower` must agree with it."""
    return "".join(low if len(low := letter.lower()) == 1 else letter for letter in text)


def word_runs(text: str) -> list[str]:
    return "".join(letter if letter.isalnum() else " " for letter in simple_lower(text)).split()


def jaccard(a: set[tuple[str, ...]], b: set[tuple[str, ...]]) -> float:
    return len(a & b) / max(1, len(a | b))


def _replace_each(text: str, end_of: Callable[[str, int], int], stand_in: str) -> str:
    result = []
    i = 0
    while i < len(text):
        end = end_of(text, i)
        result.append(stand_in if end > i else text[i])
        i = max(end, i + 1)
    return "".join(result)


def _run(text: str, i: int, members: str) -> int:
    while i < len(text) and text[i] in members:
        i += 1
    return i


def _email_end(text: str, i: int) -> int:
    """Return where the address that begins at `i` ends, or `i` if there is none.

    It is letters, "@", and labels with dots between them, the last of only letters.
    """
    at = _run(text, i, LETTERS + DIGITS + "._%+-")
    if at == i or text[at : at + 1] != "@":
        return i
    labels = text[at + 1 : _run(text, at + 1, LETTERS + DIGITS + "-.")].split(".")
    best = i
    end = at + 1
    for number, label in enumerate(labels):
        if not label:
            break
        letters = _run(label, 0, LETTERS)
        if number and letters >= 2:  # the longest address ends with the last label that begins with two letters
            best = end + letters
        end += len(label) + 1
    return best


def _ip_end(text: str, i: int) -> int:
    """Return where the address that begins at `i` ends, or `i` if there is none.

    It is four numbers up to 255 without leading zeros, and not part of a longer row of numbers.
    """
    if i and (text[i - 1] == "." or text[i - 1].isdecimal()):
        return i
    end = i
    for number in range(4):
        if number:
            if text[end : end + 1] != ".":
                return i
            end += 1
        digits = text[end : _run(text, end, DIGITS)]
        if not digits or len(digits) > 3 or int(digits) > 255 or digits != str(int(digits)):
            return i
        end += len(digits)
    rest = end
    while rest < len(text) and (text[rest] == "." or text[rest].isdecimal()):
        rest += 1
    return i if any(map(str.isdecimal, text[end:rest])) else end
