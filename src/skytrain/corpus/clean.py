"""Cleaning a batch of texts: the stages in their order, and what each of them took away.

A pure function over a batch, so that this machine's processes and Spark's run the very same one.
"""

from __future__ import annotations

from typing import Any, Callable, NamedTuple, Optional  # noqa: UP035

from .characters import utf8_size
from .rules.text import hide_personal, language_reason, normalize, url_reasons

Reasons = list[Optional[str]]  # noqa: UP045


class Tally(NamedTuple):
    """Documents and UTF-8 bytes into and out of a stage."""

    documents_in: int
    bytes_in: int
    documents_out: int
    bytes_out: int


class Cleaned(NamedTuple):
    """Text by text: what it became, its bytes, and the rule that removed it (`stage.check`), or None."""

    texts: list[str]
    sizes: list[int]
    reasons: Reasons
    tallies: dict[str, Tally]


class Batch(NamedTuple):
    """What a stage sees: the documents that are left, and the settings."""

    texts: list[str]
    places: list[int]  # of the texts in the batch as it came
    urls: Reasons
    data: Any
    decontaminator: Any
    memory: dict[str, Any]  # what one stage counted and the next can use


def stages_of(data: Any) -> list[str]:
    """The stages that these settings switch on, in order."""
    cleaning = data.cleaning
    on = {
        "urls": cleaning.urls.enabled,
        "normalize": cleaning.normalize.nfc or cleaning.normalize.control_characters or cleaning.normalize.whitespace,
        "min_chars": True,
        "language": cleaning.language.enabled,
        "gopher_repetition": cleaning.gopher_repetition.enabled,
        "gopher_quality": cleaning.gopher_quality.enabled,
        "c4": cleaning.c4.enabled,
        "fineweb": cleaning.fineweb.enabled,
        "decontaminate": cleaning.decontaminate.enabled,
        "pii": cleaning.pii.emails or cleaning.pii.ips,
        "min_chars_again": cleaning.c4.enabled or cleaning.pii.emails or cleaning.pii.ips,
    }
    return [stage for stage in STAGES if on[stage]]


def clean(texts: list[str], urls: Reasons, data: Any, decontaminator: Any = None) -> Cleaned:
    """`data` is the configuration's data group; `decontaminator` a Decontaminator where that stage is on."""
    texts, sizes = list(texts), [utf8_size(text) for text in texts]
    reasons: Reasons = [None] * len(texts)
    alive = list(range(len(texts)))
    tallies: dict[str, Tally] = {}
    memory: dict[str, Any] = {}
    for stage in stages_of(data):
        before = [texts[i] for i in alive]
        documents_in, bytes_in = len(alive), sum(sizes[i] for i in alive)
        after, found = STAGES[stage](Batch(before, alive, [urls[i] for i in alive], data, decontaminator, memory))
        for i, old, new, reason in zip(alive, before, after, found):  # noqa: B905
            if new is not old:
                texts[i], sizes[i] = new, utf8_size(new)
            if reason is not None:
                reasons[i] = f"{stage}.{reason}" if reason else stage
        alive = [i for i in alive if reasons[i] is None]
        tallies[stage] = Tally(documents_in, bytes_in, len(alive), sum(sizes[i] for i in alive))
    return Cleaned(texts, sizes, reasons, tallies)


def _urls(batch: Batch) -> tuple[list[str], Reasons]:
    return batch.texts, url_reasons(batch.urls, batch.data.cleaning.urls)


# numba takes half a second to load, so the stages that count load it when they run: a plain text corpus never does.
def _normalize(batch: Batch) -> tuple[list[str], Reasons]:
    from .rules.tidy import untidy

    changed = [
        normalize(text, batch.data.cleaning.normalize) if look else text
        for text, look in zip(batch.texts, untidy(batch.texts).tolist())  # noqa: B905
    ]
    return changed, [None] * len(changed)


def _min_chars(batch: Batch) -> tuple[list[str], Reasons]:
    return batch.texts, ["" if len(text) < batch.data.min_chars else None for text in batch.texts]


def _language(batch: Batch) -> tuple[list[str], Reasons]:
    from .rules.tidy import english

    settings = batch.data.cleaning.language
    known = english(batch.texts, settings.english_words).tolist()
    return batch.texts, [language_reason(text, is_english, settings) for text, is_english in zip(batch.texts, known)]  # noqa: B905


def _scanned(batch: Batch, ngrams: bool = False) -> tuple[Any, list[int]]:
    """What a scan found, and the rows of it that are this batch's; texts do not change between the first scan and C4."""
    from .rules.scan import scan

    if "scan" not in batch.memory:
        found = scan(batch.texts, ngrams, batch.data.cleaning.fineweb.short_line_chars)
        batch.memory["scan"] = (found, {place: row for row, place in enumerate(batch.places)})
    found, row_of = batch.memory["scan"]
    return found, [row_of[place] for place in batch.places]


def _gopher_repetition(batch: Batch) -> tuple[list[str], Reasons]:
    from .rules.quality import gopher_repetition

    found, rows = _scanned(batch, ngrams=True)
    return batch.texts, gopher_repetition(found.counts.rows(rows), batch.data.cleaning.gopher_repetition)


def _gopher_quality(batch: Batch) -> tuple[list[str], Reasons]:
    from .rules.quality import gopher_quality

    found, rows = _scanned(batch)
    return batch.texts, gopher_quality(found.counts.rows(rows), batch.data.cleaning.gopher_quality)


def _c4(batch: Batch) -> tuple[list[str], Reasons]:
    from .rules.quality import c4
    from .rules.scan import Scan

    found, rows = _scanned(batch)
    result = c4(batch.texts, batch.data.cleaning.c4, batch.data.cleaning.fineweb.short_line_chars, found.of(rows))
    batch.memory["scan"] = (Scan(result.counts, found.found[rows], []), {p: row for row, p in enumerate(batch.places)})
    return result.texts, result.reasons


def _fineweb(batch: Batch) -> tuple[list[str], Reasons]:
    from .rules.quality import fineweb

    found, rows = _scanned(batch)
    return batch.texts, fineweb(found.counts.rows(rows), batch.data.cleaning.fineweb)


def _decontaminate(batch: Batch) -> tuple[list[str], Reasons]:
    return batch.texts, ["" if hit else None for hit in batch.decontaminator.hits(batch.texts)]


def _pii(batch: Batch) -> tuple[list[str], Reasons]:
    return [hide_personal(text, batch.data.cleaning.pii) for text in batch.texts], [None] * len(batch.texts)


STAGES: dict[str, Callable[[Batch], tuple[list[str], Reasons]]] = {
    "urls": _urls,
    "normalize": _normalize,
    "min_chars": _min_chars,
    "language": _language,
    "gopher_repetition": _gopher_repetition,
    "gopher_quality": _gopher_quality,
    "c4": _c4,
    "fineweb": _fineweb,
    "decontaminate": _decontaminate,
    "pii": _pii,
    "min_chars_again": _min_chars,  # what C4 left of a document must be long enough too
}
