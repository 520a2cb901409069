"""From a source to a corpus: documents, cleaning, de-duplication."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from .declare import DATA, EXECUTION, NUMBERS, setting, settings
from .kinds import Bytes, Count, Fraction, NonNegative, OtherKeys, Positive, PositiveFloat, Range, Whole


@settings
class SourceConfig:
    """A class that yields documents; every other key under `source` is an argument of that class."""

    target: str = setting(DATA, "Path of the class that yields documents, such as `my_package.MySource`.")
    args: Annotated[dict[str, Any], OtherKeys()] = setting(
        DATA, "Arguments of that class, written directly under `data.source`."
    )


@settings
class NormalizeConfig:
    """Changes to the text of every document, before any rule is applied."""

    nfc: bool = setting(DATA, "Convert to Unicode's composed form (NFC).")
    control_characters: bool = setting(DATA, "Remove control characters, except tab and line feed.")
    whitespace: bool = setting(
        DATA, r"Make line ends `\n` and exotic spaces plain; remove trailing spaces and third blank lines."
    )


@settings
class UrlConfig:
    """Rules on the address of a document, for sources whose documents carry `meta.url`."""

    enabled: bool = setting(DATA, "Apply these rules.")
    blocked_domains: list[str] = setting(DATA, "Domains to drop, with their subdomains.")
    blocked_words: list[str] = setting(DATA, "Words that may appear nowhere in the address.")


@settings
class LanguageConfig:
    """The languages whose documents are kept."""

    enabled: bool = setting(DATA, "Apply this rule.")
    keep: list[str] = setting(DATA, "Languages to keep, as two-letter codes.")
    max_rank: Positive = setting(
        DATA, "Greatest distance to the language's profile; beyond 1200 the guess is usually wrong."
    )
    english_words: Fraction = setting(
        DATA, "A text with this share of the commonest English words is English; the detector decides about others."
    )


@settings
class GopherRepetitionConfig:
    """Gopher's rules on repetition."""

    enabled: bool = setting(DATA, "Apply these rules.")
    max_duplicate_lines: Fraction = setting(DATA, "Largest share of duplicate lines.")
    max_duplicate_paragraphs: Fraction = setting(DATA, "Largest share of duplicate paragraphs.")
    max_duplicate_line_chars: Fraction = setting(DATA, "Largest share of characters in duplicate lines.")
    max_duplicate_paragraph_chars: Fraction = setting(DATA, "Largest share of characters in duplicate paragraphs.")
    max_top_ngram_chars: list[Fraction] = setting(
        DATA, "Largest share of characters in the most frequent n-gram of 2, 3 and 4 words."
    )
    max_duplicate_ngram_chars: list[Fraction] = setting(
        DATA, "Largest share of characters in duplicate n-grams of 5 to 10 words."
    )


@settings
class GopherQualityConfig:
    """Gopher's rules on quality."""

    enabled: bool = setting(DATA, "Apply these rules.")
    min_words: Whole = setting(DATA, "Fewest words that contain a letter or a digit.")
    max_words: Positive = setting(DATA, "Most words that contain a letter or a digit.")
    min_mean_word_chars: NonNegative = setting(DATA, "Shortest mean length of a word, in characters.")
    max_mean_word_chars: PositiveFloat = setting(DATA, "Longest mean length of a word, in characters.")
    max_hashes_per_word: NonNegative = setting(DATA, "Most `#` characters per word.")
    max_ellipses_per_word: NonNegative = setting(DATA, "Most ellipses per word.")
    max_bullet_lines: Fraction = setting(DATA, "Largest share of lines that begin with a bullet.")
    max_ellipsis_lines: Fraction = setting(DATA, "Largest share of lines that end in an ellipsis.")
    min_letter_words: Fraction = setting(DATA, "Smallest share of words that contain a letter.")
    min_stop_words: Whole = setting(DATA, "Fewest of the words the, be, to, of, and, that, have, with.")


@settings
class C4Config:
    """C4's rules: take lines out of documents, then drop documents that have little left."""

    enabled: bool = setting(DATA, "Apply these rules.")
    terminal_punctuation: bool = setting(
        DATA, """Drop lines that end in none of . ? ! " ' or in three dots; FineWeb leaves this off."""
    )
    min_words_per_line: Whole = setting(DATA, "Drop lines with fewer words.")
    max_word_chars: Positive = setting(DATA, "Drop lines with a longer word.")
    javascript_lines: bool = setting(DATA, "Drop lines that mention JavaScript.")
    policy_lines: bool = setting(DATA, "Drop lines about cookies, terms of use and privacy.")
    citations: bool = setting(DATA, "Cut out [1], [edit] and the like.")
    lorem_ipsum: bool = setting(DATA, "Drop documents in which a line that was not dropped contains lorem ipsum.")
    curly_bracket: bool = setting(DATA, "Drop documents in which a line that was not dropped contains a curly bracket.")
    min_sentences: Whole = setting(DATA, "Drop documents with fewer sentences left.")


@settings
class FineWebConfig:
    """FineWeb's own rules."""

    enabled: bool = setting(DATA, "Apply these rules.")
    min_terminal_lines: Fraction = setting(DATA, """Smallest share of lines that end in one of . ? ! " '.""")
    max_short_lines: Fraction = setting(DATA, "Largest share of short lines.")
    short_line_chars: Positive = setting(DATA, "A line of at most this many characters is short.")
    max_duplicate_line_chars: Fraction = setting(DATA, "Largest share of characters in duplicate lines.")
    max_newlines_per_word: NonNegative = setting(DATA, "Most line feeds per word.")


@settings
class DecontaminateConfig:
    """Removal of documents that share a run of words with an evaluation set."""

    enabled: bool = setting(DATA, "Apply this rule.")
    paths: list[str] = setting(DATA, "Evaluation sets: text or JSON lines, one example per line.")
    ngram_words: Positive = setting(DATA, "Length of the shared run, in words.")


@settings
class PiiConfig:
    """Replacement of personal data; no document is dropped."""

    emails: bool = setting(DATA, "Replace e-mail addresses.")
    ips: bool = setting(DATA, "Replace IP addresses.")


@settings
class CleaningConfig:
    """The rules that documents go through, in this order. The rule of the settings NAME is corpus/rules/NAME.py."""

    urls: UrlConfig
    normalize: NormalizeConfig
    language: LanguageConfig
    gopher_repetition: GopherRepetitionConfig
    gopher_quality: GopherQualityConfig
    c4: C4Config
    fineweb: FineWebConfig
    decontaminate: DecontaminateConfig
    pii: PiiConfig


@settings
class NearDedupConfig:
    """Near-duplicates: MinHash proposes pairs that share a band, and the exact Jaccard similarity of shingles decides.

    A pair of similarity s is proposed with probability 1 - (1 - s^rows)^bands.
    """

    enabled: bool = setting(DATA, "Remove near-duplicates.")
    min_similarity: Fraction = setting(
        DATA, "Jaccard similarity of shingles from which two documents are near-duplicates."
    )
    shingle_words: Positive = setting(DATA, "Words of a shingle.")
    bands: Annotated[int, Range(min=1, max=1000)] = setting(
        DATA, "Bands of a signature: more propose more pairs, also dissimilar ones."
    )
    rows: Positive = setting(DATA, "Minima in a band: more propose fewer pairs, and miss more similar ones.")
    permutations: Positive | None = setting(
        DATA,
        "Minima of a signature, at least bands x rows; null: just as many. More estimate better which proposed pairs are worth an exact comparison.",
    )


@settings
class DataConfig:
    """A data set: where its documents come from, and how they are cleaned, split and stored."""

    name: str = setting(DATA, "Name of the data set, and of its folders in the store.")
    version: str | None = setting(
        NUMBERS,
        "Which preparation to train on, where the store holds several of one configuration; null: the only one.",
    )
    source: SourceConfig
    target_tokens: Count | None = setting(DATA, "Stop when the training split holds this many tokens; null: read all.")
    bytes_per_token: PositiveFloat = setting(
        DATA, "Text kept for each token of the target; generous, since the text is cut before it is tokenized."
    )
    validation_fraction: Fraction = setting(DATA, "Share of the documents that go to the validation split.")
    bad_records: Literal["stop", "skip"] = setting(
        DATA, "What to do with a record that cannot be read: end with an error, or count it and leave it out."
    )
    max_document_bytes: Bytes = setting(DATA, "A longer document counts as a bad record.")
    min_chars: Whole = setting(DATA, "Shorter documents are dropped.")
    cleaning: CleaningConfig
    exact_dedup: bool = setting(DATA, "Remove exact duplicates.")
    near_dedup: NearDedupConfig
    shard_tokens: Count = setting(DATA, "Tokens in one shard.")
    part_bytes: Bytes = setting(DATA, "Text in one parquet part.")
    workers: Positive | None = setting(EXECUTION, "Processes that prepare data; null: one per core.")


@settings
class SparkConfig:
    """Spark, with engine=spark."""

    master: str | None = setting(
        EXECUTION, "Where to run: local[2], spark://host:7077, yarn; null: what spark-submit says, else local[*]."
    )
    partitions: Positive | None = setting(
        EXECUTION, "Partitions of a shuffle; null: two for each core, or one for every 200,000 documents."
    )
    split_bytes: Bytes | None = setting(
        EXECUTION,
        "Larger files of parquet, plain JSON lines and plain text are read by several tasks; null: 64 MiB, or a quarter "
        "of each core's share of all files.",
    )
    conf: dict[str, str] = setting(EXECUTION, "Properties of Spark, such as {spark.executor.memory: 2g}.")
