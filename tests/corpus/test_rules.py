"""Every fast rule agrees, document by document, with its plain reference; and each check fires on a document made for it."""

from __future__ import annotations

import dataclasses
import itertools
import random
import sys
import types
from functools import lru_cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st
from tests.corpus import reference

from skytrain.config import compose
from skytrain.corpus.characters import TABLE_SIZE, character_tables
from skytrain.corpus.clean import clean
from skytrain.corpus.rules.c4 import c4
from skytrain.corpus.rules.counts import Counts
from skytrain.corpus.rules.fineweb import fineweb
from skytrain.corpus.rules.gopher_quality import gopher_quality
from skytrain.corpus.rules.gopher_repetition import gopher_repetition
from skytrain.corpus.rules.normalize import normalize
from skytrain.corpus.rules.pii import hide_personal
from skytrain.corpus.rules.scan import scan
from skytrain.corpus.rules.urls import url_reasons
from skytrain.corpus.sources import PythonDocs

WEB = compose(["data/cleaning=web"]).config.data.cleaning
PROSE = (
    "The committee met on the first day of the month to decide what should be done with the old bridge. "
    "Most of its members agreed that the stones were sound, and that only the railing had to be replaced before winter. "
    "A letter from the county engineer was read aloud, which set out three plans and what each of them would cost. "
    "After a long debate the second plan was chosen by seven votes to four. "
    "Work will begin in May and is expected to take nine weeks, during which carts must use the lower ford. "
    "Notices have been posted on both banks of the river so that nobody will be surprised."
)
# Words and marks that the rules look at, so that random texts come near every limit.
PIECES = [
    *(
        "the",
        "be",
        "of",
        "and",
        "with",
        "word",
        "Straße",
        "日本語",
        "x" * 40,
        "1,000",
        "#",
        "#",
        "...",
        "…",
        "-",
        "•",
        "{",
        "[1]",
        "[edit]",
    ),
    *(
        ".",
        "!",
        '"',
        "lorem ipsum",
        "JavaScript",
        "privacy policy",
        "Use Cookies",
        "İstanbul",
        "ΣΑΣ",
        "ﬁ",
        "\n",
        "\n",
        "\n\n",
        "\n\n\n",
        " ",
        "\t",
        "\u2003",
        "\u00a0",
    ),
]
TEXT = st.lists(st.sampled_from(PIECES) | st.text(st.characters(codec="utf-8"), max_size=4), max_size=60).map(" ".join)
LOOSE = dataclasses.replace(WEB.gopher_quality, min_words=3, min_stop_words=1)


def count(texts: list[str], ngrams: bool, short_line_chars: int = 30) -> Counts:
    return scan(texts, ngrams, short_line_chars).counts


def assert_agree(texts: list[str], rules: Any = WEB, quality: Any = WEB.gopher_quality) -> None:
    counts = count(texts, ngrams=True, short_line_chars=rules.fineweb.short_line_chars)
    assert gopher_repetition(counts, rules.gopher_repetition) == [
        reference.gopher_repetition(t, rules.gopher_repetition) for t in texts
    ]
    assert gopher_quality(counts, quality) == [reference.gopher_quality(t, quality) for t in texts]
    assert fineweb(counts, rules.fineweb) == [reference.fineweb(t, rules.fineweb) for t in texts]
    for lines in (
        rules.c4,
        dataclasses.replace(
            rules.c4, terminal_punctuation=True, min_sentences=1, curly_bracket=False, lorem_ipsum=False
        ),
    ):
        changed, reasons, left = c4(texts, lines)
        assert list(zip(changed, reasons, strict=True)) == [reference.c4(t, lines) for t in texts]
        stay = [i for i, reason in enumerate(reasons) if reason is None]
        assert fineweb(left.rows(stay), rules.fineweb) == [reference.fineweb(changed[i], rules.fineweb) for i in stay]
    assert [normalize(t, rules.normalize) for t in texts] == [reference.normalize(t, rules.normalize) for t in texts]


@settings(max_examples=60)
@given(st.lists(TEXT, max_size=4))
def test_fast_rules_agree_with_their_references_on_anything(texts: list[str]) -> None:
    assert_agree(texts, quality=LOOSE)


def test_fast_rules_agree_with_their_references_on_real_documents() -> None:
    documents = [document.text for document in itertools.islice(PythonDocs().documents(), 0, 4000, 5)]
    assert_agree([*documents, "\n\n".join(documents[:200])])


def test_counts_agree_on_repetitive_text() -> None:
    generator = random.Random(0)
    texts = [
        " ".join(generator.choices(["a", "bb", "ccc", "dd", "e\n", "f\n\n"], k=generator.randrange(200)))
        for _ in range(200)
    ]
    counts = count(texts, ngrams=True)
    for n in (2, 3, 4):
        assert counts[f"top_{n}gram_chars"].tolist() == [reference.top_ngram_chars(text.split(), n) for text in texts]
    for n in range(5, 11):
        assert counts[f"duplicate_{n}gram_chars"].tolist() == [
            reference.duplicate_ngram_chars(text.split(), n) for text in texts
        ]
    assert counts["duplicate_line_chars"].tolist() == [
        reference.duplicates(reference.lines_of(text))[1] for text in texts
    ]
    assert counts["duplicate_paragraphs"].tolist() == [
        reference.duplicates(reference.paragraphs_of(text))[0] for text in texts
    ]


def test_no_letter_or_space_lies_beyond_the_tables() -> None:
    assert not any(chr(code).isalnum() or chr(code).isspace() for code in range(TABLE_SIZE, 0x110000))
    assert character_tables().lower[ord("İ")] == ord("İ")  # whose lower case is two characters


def test_good_prose_passes_every_rule() -> None:
    counts = count([PROSE], ngrams=True)
    assert gopher_repetition(counts, WEB.gopher_repetition) == [None]
    assert gopher_quality(counts, WEB.gopher_quality) == [None]
    assert fineweb(counts, WEB.fineweb) == [None]
    assert c4([PROSE], WEB.c4)[:2] == ([PROSE], [None])


@pytest.mark.parametrize(
    ("check", "text"),
    [
        ("words", "the end of it"),
        ("mean_word_chars", "a b of the " * 40),
        ("hashes", PROSE + " #" * 30),
        ("ellipses", PROSE + " ..." * 30),
        ("bullet_lines", "\n".join("- the item and what be that is" for _ in range(20))),
        ("ellipsis_lines", "\n".join(f"line {i} of the text and more..." for i in range(9)) + PROSE),
        ("letter_words", PROSE + " 12" * 60),
        ("stop_words", "consequently several engineers proposed entirely different mechanisms " * 10),
    ],
)
def test_gopher_quality_names_the_check_that_failed(check: str, text: str) -> None:
    assert gopher_quality(count([text], ngrams=False), WEB.gopher_quality) == [check]


@pytest.mark.parametrize(
    ("check", "text"),
    [
        ("duplicate_lines", "Read more here\n" * 4 + PROSE),
        (
            "duplicate_paragraphs",
            "\n\n".join([PROSE, "Buy now", "a", "Buy now", "Buy now"]).replace("Buy now", "Buy\nnow").replace("a", "b"),
        ),
        ("duplicate_line_chars", "\n".join([PROSE, "one", "two", PROSE, "three", "four"])),
        ("top_2gram", "click here " * 30 + PROSE),
        ("duplicate_5gram", " ".join([*PROSE.split()[:45], "so", *PROSE.split()])),
    ],
)
def test_gopher_repetition_names_the_check_that_failed(check: str, text: str) -> None:
    rules = (
        dataclasses.replace(WEB.gopher_repetition, max_duplicate_lines=0.5)
        if check == "duplicate_paragraphs"
        else WEB.gopher_repetition
    )
    assert gopher_repetition(count([text], ngrams=True), rules) == [check]


def test_c4_takes_out_lines_and_citations_and_keeps_the_rest() -> None:
    lines = PROSE.replace(". ", ".\n").split("\n")
    page = "\n".join(
        [
            "Menu",
            *lines[:3],
            "Please enable JavaScript to go on with this page.",
            "We use cookies on this site.",
            *lines[3:],
            "w" * 1001 + " is a word",
        ]
    )
    changed, reasons, _ = c4([page.replace("bridge.", "bridge.[12]")], WEB.c4)
    assert changed == ["\n".join(lines)]
    assert reasons == [None]


@pytest.mark.parametrize(
    ("reason", "text"),
    [("lorem_ipsum", PROSE + " Lorem ipsum"), ("curly_bracket", PROSE + "{"), ("sentences", "Only one. And two.")],
)
def test_c4_drops_documents(reason: str, text: str) -> None:
    assert c4([text], WEB.c4).reasons == [reason]


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("Menu {", None),  # too few words
        ("lorem ipsum", None),
        ("{" * 1001 + " is a word of the line", None),  # a word too long
        ("Please enable JavaScript to see { here.", None),
        ("Please enable JavaScript to see lorem ipsum.", "lorem_ipsum"),
        ("Our privacy policy is in { and }.", "curly_bracket"),
        ("Our privacy policy is lorem ipsum.", "lorem_ipsum"),
        ("if (x) { return", "curly_bracket"),
    ],
)
def test_only_a_line_that_c4_has_not_dropped_yet_removes_its_document(line: str, reason: str | None) -> None:
    assert c4([f"{PROSE}\n{line}\n{PROSE}"], WEB.c4).reasons == [reason]


def test_c4_drops_lines_without_a_mark_before_they_can_remove_their_document() -> None:
    rule = dataclasses.replace(WEB.c4, terminal_punctuation=True)
    lines = ["a { b c", "it goes on and on...", "it goes on and on…", "He said \u201cso be it\u201d"]
    kept = ['He said "so be it"', "Is it so?", "It is so!", "It is so..!", "'It is so'"]
    assert c4(["\n".join([*lines, PROSE, *kept])], rule)[:2] == (["\n".join([PROSE, *kept])], [None])


def test_c4_counts_words_with_the_citations_that_it_cuts_out() -> None:
    page = f"{PROSE}\nTwo words [3]\n[1] [2] [3]\nNow {'w' * 998}[12] is cut.\nOne [edit]"
    changed, reasons, _ = c4([page], WEB.c4)
    assert (changed, reasons) == ([f"{PROSE}\nTwo words"], [None])


def test_fineweb_counts_the_marks_that_it_documents() -> None:
    lines = ["The end.", "The end!", "The end?", 'The "end"', "The 'end'", "The end..."]
    others = ["The \u201cend\u201d", "The end\u2026", "\u5b8c\u3002", "The end)", "The end:"]
    assert count(["\n".join([*lines, *others])], ngrams=False)["terminal_lines"].tolist() == [len(lines)]


@pytest.mark.parametrize(
    ("reason", "text"),
    [
        ("terminal_lines", "\n".join(f"a line that has no mark at its end {i}" for i in range(10))),
        ("short_lines", "\n".join(f"Short {i}." for i in range(10)) + "\n" + PROSE),
        (
            "duplicate_line_chars",
            PROSE + "\nShare this with all of your friends.\nShare this with all of your friends." * 1,
        ),
        ("newlines", PROSE.replace(" ", "\n", 60)),
    ],
)
def test_fineweb_names_the_check_that_failed(reason: str, text: str) -> None:
    rules = (
        dataclasses.replace(WEB.fineweb, max_short_lines=1.0, min_terminal_lines=0.0, max_duplicate_line_chars=1.0)
        if reason == "newlines"
        else WEB.fineweb
    )
    assert fineweb(count([text], ngrams=False), rules) == [reason]


def test_normalizing_tidies_what_no_one_sees_and_keeps_what_someone_does() -> None:
    text = "\n\ne\u0301tude\u00a0one \t\r\ntwo\x00\x07\u200b\ufeff\n\n\n\n\n\tindented\u2028👩\u200d👧\x85"
    assert normalize(text, WEB.normalize) == "\u00e9tude one\ntwo\n\n\n\tindented\n👩\u200d👧"


def test_personal_addresses_become_nobodys() -> None:
    text = (
        "Write to jane.doe+x@mail.example.org, or see 10.11.12.13. Version 1.2.3.4.5 and 300.1.1.1 stay, so does @home."
    )
    hidden = hide_personal(text, WEB.pii)
    assert (
        hidden == "Write to email@example.com, or see 192.0.2.1. Version 1.2.3.4.5 and 300.1.1.1 stay, so does @home."
    )


ENGLISH = "The committee met on the first day of the month, and the letter that it sent to you is from the clerk."
FRENCH = "Le comité s'est réuni le premier jour du mois pour décider de ce qu'il fallait faire du vieux pont de pierre."
GERMAN = "Der Ausschuss trat am ersten Tag des Monats zusammen, um zu entscheiden, was mit der alten Brücke geschehen sollte."
PERSONAL = st.lists(
    st.sampled_from(
        ["a.b@c.org", "x@y", "@", "10.1.2.3", "1.2.3.4.5", "256.1.1.1", "1.2.3.04", ".", "-", "\n", " ", "é", "٣", "0"]
    )
    | st.text("ab1.@-_%+ \n", max_size=8),
    max_size=30,
).map("".join)
ADDRESSES = st.lists(
    st.sampled_from(
        ["http:", "//", "www.", "spam.example", "good.example", "x@", ":80", "/", "?", "Casino", "[", "::1]", "#"]
    ),
    max_size=6,
).map("".join)


def test_language_is_told_and_others_are_named() -> None:
    texts = [PROSE, GERMAN, FRENCH, "Zero one two three four five six seven eight nine ten eleven twelve."]
    data = compose(["data/cleaning=none", "data.cleaning.language.enabled=true"]).config.data
    assert clean(texts, [None] * 4, data).reasons[:3] == [None, "language.de", "language.fr"]


def every_rule(text: str, url: str | None, data: Any) -> tuple[str, str | None]:
    """The stages one after the other, by their references."""
    rules = data.cleaning
    if reason := reference.url(url, rules.urls):
        return text, f"urls.{reason}"
    text = reference.normalize(text, rules.normalize)
    if len(text) < data.min_chars:
        return text, "min_chars"
    for stage in ("language", "gopher_repetition", "gopher_quality"):
        if reason := getattr(reference, stage)(text, getattr(rules, stage)):
            return text, f"{stage}.{reason}"
    text, reason = reference.c4(text, rules.c4)
    if reason:
        return text, f"c4.{reason}"
    if reason := reference.fineweb(text, rules.fineweb):
        return text, f"fineweb.{reason}"
    text = reference.hide_personal(text, rules.pii)
    return text, "min_chars_again" if len(text) < data.min_chars else None


@lru_cache
def web(*overrides: str) -> Any:
    return compose(["data/cleaning=web", "data.cleaning.urls.enabled=true", *overrides]).config.data


def assert_agree_on_everything(texts: list[str], urls: list[str | None], data: Any) -> list[str | None]:
    cleaned = clean(texts, urls, data)
    expected = [every_rule(text, url, data) for text, url in zip(texts, urls, strict=True)]
    assert list(zip(cleaned.texts, cleaned.reasons, strict=True)) == expected
    return cleaned.reasons


BLOCKED = ("data.cleaning.urls.blocked_domains=[Spam.example]", "data.cleaning.urls.blocked_words=[casino]")
LENIENT = ("data.cleaning.gopher_quality.min_words=1", "data.cleaning.c4.min_sentences=1")


@settings(max_examples=40)
@given(st.lists(st.tuples(st.sampled_from([ENGLISH, FRENCH, PROSE, ""]), TEXT, PERSONAL, ADDRESSES), max_size=4))
def test_all_stages_together_agree_with_their_references_on_anything(parts: list[tuple[str, str, str, str]]) -> None:
    assert_agree_on_everything(
        [f"{prose} {odd} {personal}" for prose, odd, personal, _ in parts],
        [url or None for *_, url in parts],
        web(*BLOCKED, *LENIENT),
    )


def test_all_stages_together_agree_with_their_references_on_real_documents() -> None:
    documents = [document.text for document in itertools.islice(PythonDocs().documents(), 0, 6000, 10)]
    long = ["\n".join(documents[i : i + 8]) for i in range(0, len(documents), 8)]
    texts = [*documents, *long, *(f"{text}\nWrite to me@home.org at 10.0.0.1." for text in long), GERMAN, FRENCH]
    reasons = assert_agree_on_everything(texts, [None] * len(texts), web(*LENIENT))
    assert {None, "language.de", "language.fr"} < set(reasons)


@settings(max_examples=200)
@given(PERSONAL)
def test_hiding_addresses_agrees_with_its_reference(text: str) -> None:
    assert hide_personal(text, WEB.pii) == reference.hide_personal(text, WEB.pii)


@settings(max_examples=200)
@given(ADDRESSES)
def test_blocking_addresses_agrees_with_its_reference(url: str) -> None:
    rules = dataclasses.replace(WEB.urls, blocked_domains=["Spam.example"], blocked_words=["casino"])
    assert url_reasons([url], rules) == [reference.url(url, rules)]


def test_addresses_are_blocked_by_domain_and_word() -> None:
    rules = dataclasses.replace(WEB.urls, blocked_domains=["spam.example"], blocked_words=["casino"])
    urls = [
        *("https://www.spam.example/x", "http://notspam.example/", "http://a.b/Casino-tips"),
        *(None, "spam.example/y//z", "http://[broken/"),
    ]
    assert url_reasons(urls, rules) == ["domain", None, "word", None, "domain", None]


def test_a_new_rule_is_one_module_named_like_its_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    module = types.ModuleType("skytrain.corpus.rules.shouting")
    source = """
from skytrain.corpus.rules.registry import CleaningRule

def apply(batch):
    most = batch.data.cleaning.shouting.max_capitals
    return batch.texts, ["capitals" if sum(map(str.isupper, text)) > most * len(text) else None for text in batch.texts]

RULE = CleaningRule(apply)
"""
    exec(source, module.__dict__)
    monkeypatch.setitem(sys.modules, module.__name__, module)
    data = compose(["data.min_chars=1"]).config.data
    shouting = types.SimpleNamespace(enabled=True, max_capitals=0.5)
    cleaning = types.SimpleNamespace(**vars(data.cleaning), shouting=shouting)
    changed = types.SimpleNamespace(**{**vars(data), "cleaning": cleaning})
    assert clean(["BUY NOW", "Buy now."], [None, None], changed).reasons == ["shouting.capitals", None]
    assert clean(["BUY NOW"], [None], data).reasons == [None]


def test_the_table_beside_datatrove_is_the_one_that_was_measured() -> None:
    root = Path(__file__).parents[2]
    table = [line for line in (root / "benchmarks/corpus/fidelity.log").read_text().split("\n") if line[:1] == "|"]
    assert len(table) > 5
    assert "\n".join(table) in (root / "docs/corpus.md").read_text()
