"""From a source to a corpus: documents, cleaning, de-duplication."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from .kinds import Bytes, Count, Fraction, NonNegative, Positive, PositiveFloat, Whole


@dataclass(frozen=True)
class SourceConfig:
    """A class that yields documents; every other key under `source` is an argument of that class."""

    target: str
    args: dict[str, Any]


@dataclass(frozen=True)
class NormalizeConfig:
    """Changes to the text of every document, before any rule looks at it."""

    nfc: bool  # Unicode's composed form
    control_characters: bool  # removed, but for tab and line feed
    whitespace: bool  # line ends become \n, exotic spaces plain, trailing spaces and third blank lines go


@dataclass(frozen=True)
class UrlConfig:
    """For sources whose documents carry meta.url."""

    enabled: bool
    blocked_domains: list[str]  # and what is below them
    blocked_words: list[str]  # anywhere in the address


@dataclass(frozen=True)
class LanguageConfig:
    enabled: bool
    keep: list[str]  # two-letter codes
    max_rank: Positive  # distance to the language's profile; past 1200 it is usually a wrong guess
    english_words: (
        Fraction  # a text with this share of the commonest English words is English; the detector is asked about others
    )


@dataclass(frozen=True)
class GopherRepetitionConfig:
    enabled: bool
    max_duplicate_lines: Fraction
    max_duplicate_paragraphs: Fraction
    max_duplicate_line_chars: Fraction
    max_duplicate_paragraph_chars: Fraction
    max_top_ngram_chars: list[Fraction]  # of 2, 3 and 4 words
    max_duplicate_ngram_chars: list[Fraction]  # of 5 to 10 words


@dataclass(frozen=True)
class GopherQualityConfig:
    enabled: bool
    min_words: Whole  # that hold a letter or a digit
    max_words: Positive
    min_mean_word_chars: NonNegative
    max_mean_word_chars: PositiveFloat
    max_hashes_per_word: NonNegative  # the character #
    max_ellipses_per_word: NonNegative
    max_bullet_lines: Fraction
    max_ellipsis_lines: Fraction
    min_letter_words: Fraction
    min_stop_words: Whole  # of the, be, to, of, and, that, have, with


@dataclass(frozen=True)
class C4Config:
    """Takes lines out of documents, then documents that have little left."""

    enabled: bool
    terminal_punctuation: bool  # drop lines without; FineWeb leaves this off
    min_words_per_line: Whole
    max_word_chars: Positive
    javascript_lines: bool
    policy_lines: bool
    citations: bool  # [1], [edit] and the like are cut out
    lorem_ipsum: bool
    curly_bracket: bool
    min_sentences: Whole


@dataclass(frozen=True)
class FineWebConfig:
    enabled: bool
    min_terminal_lines: Fraction
    max_short_lines: Fraction
    short_line_chars: Positive
    max_duplicate_line_chars: Fraction
    max_newlines_per_word: NonNegative


@dataclass(frozen=True)
class DecontaminateConfig:
    """Drops documents that share a run of words with an evaluation set."""

    enabled: bool
    paths: list[str]  # text or JSON lines, each line one example
    ngram_words: Positive


@dataclass(frozen=True)
class PiiConfig:
    """Replaces, never drops."""

    emails: bool
    ips: bool


@dataclass(frozen=True)
class CleaningConfig:
    normalize: NormalizeConfig
    urls: UrlConfig
    language: LanguageConfig
    gopher_repetition: GopherRepetitionConfig
    gopher_quality: GopherQualityConfig
    c4: C4Config
    fineweb: FineWebConfig
    decontaminate: DecontaminateConfig
    pii: PiiConfig


@dataclass(frozen=True)
class NearDedupConfig:
    """MinHash over 5-word shingles, 14 bands of 8."""

    enabled: bool
    min_similarity: Fraction  # share of the 112 minima that a pair must have in common


@dataclass(frozen=True)
class DataConfig:
    name: str
    version: str | None  # set only to choose among several preparations of one configuration
    source: SourceConfig
    target_tokens: Count | None  # stop when the training split holds this many
    bytes_per_token: PositiveFloat  # text kept for each token of the target; generous, since the tokenizer comes later
    validation_fraction: Fraction
    bad_records: Literal["stop", "skip"]  # what cannot be read: an error, or counted and left out
    max_document_bytes: Bytes  # a longer one counts as a bad record
    min_chars: Whole  # shorter documents are dropped
    cleaning: CleaningConfig
    exact_dedup: bool
    near_dedup: NearDedupConfig
    shard_tokens: Count
    part_bytes: Bytes  # text in one parquet part
    workers: Positive | None  # processes; null: one for each core. The result never depends on it
