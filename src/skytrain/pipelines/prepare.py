"""Prepare: sources -> documents -> tokens in the store."""

from __future__ import annotations

import json
import random
import string
import time
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, replace
from itertools import islice
from typing import Any

import numpy as np

from ..config import (
    BPETokenizerConfig,
    Config,
    ConfigError,
    DataConfig,
    HFTokenizerConfig,
    SkytrainError,
    TokenizerConfig,
    build,
    format_bytes,
    format_count,
    make,
    plural,
)
from ..corpus import (
    CorpusManifest,
    Pace,
    SparkJobs,
    Synthetic,
    corpus_version,
    corpus_warnings,
    fingerprint_of,
    open_corpus,
    open_jobs,
    read_part,
    recipe_hash,
    stages_of,
    worker_count,
    write_corpus,
    write_corpus_on_spark,
)
from ..runs import Reporter
from ..storage import AGAIN, MANIFEST_BYTES, NotFound, Store, is_whole, open_store, read_object, record_of
from ..tokens import (
    TEMPLATE_FILE,
    ChatFiles,
    ChatRows,
    ParquetTokens,
    Prepared,
    Shard,
    ShardWriter,
    SparkTokens,
    TokenFiles,
    TokenizedSlice,
    Tokenizer,
    describe_begin,
    dividing_fraction,
    has_tokens,
    open_prepared,
    open_tokenizer,
    spark_tokens,
    split_of,
    store_tokenizer,
    tokenize_corpus,
    tokens_folder,
    train_bpe,
    trained_tokenizer_id,
    trained_tokenizer_key,
    write_shards_on_spark,
)

REPORT_SECONDS = 0.5  # between two lines of progress
SUGGESTED_VALIDATION_SHARE = 0.1  # of the documents
MAX_SAMPLED_IDS = 1000  # a fraction that divides the first documents divides them all
BYTE_VOCABULARY = 257  # tokens of a byte-level BPE without merges: the bytes and the end of text


@dataclass(frozen=True)
class Preparation:
    """The state that every step of `prepare` works with."""

    config: Config
    store: Store
    source: Any
    version: str  # a hash of everything that decides the data
    reporter: Reporter
    jobs: SparkJobs | None = None  # with engine=spark

    @property
    def data(self) -> DataConfig:
        return self.config.data


def prepare(config: Config, reporter: Reporter) -> Prepared:
    """Make the corpus, the tokenizer and the shards with their manifest.

    What an earlier call has finished is used again.
    """
    work = _start(config, reporter)
    if config.engine == "local":
        return _prepare(work)
    if has_tokens(work.source):
        raise ConfigError("engine", f"spark prepares documents; data={config.data.name} has none", hint="engine=local")
    with open_jobs(config.spark, reporter.progress) as jobs:
        return _prepare(replace(work, jobs=jobs))


def _prepare(work: Preparation) -> Prepared:
    reporter = work.reporter
    given = _given_tokenizer(work)  # before the corpus is made, which takes hours: it may be a wrong one
    corpus = None if has_tokens(work.source) else _make_corpus(work)
    tokenizer = given or _train_tokenizer(work, corpus)
    folder = tokens_folder(work.data.name, work.version, tokenizer.id)
    prepared = open_prepared(work.store, folder) or _write_splits(work, folder, tokenizer, corpus)
    if corpus is not None:
        for warning in corpus_warnings(work.source, corpus):
            reporter.note(f"warning: {warning}")
    reporter.note(describe(work.store, prepared))
    if prepared.validation is None:
        documents = prepared.train.documents
        reporter.note(no_validation(work.data, work.source, documents, _document_ids(work, corpus, documents)))
    return prepared


def _start(config: Config, reporter: Reporter) -> Preparation:
    store = open_store(config.store).patient(config.store.patience)
    source = make(config.data.source.target, config.data.source.args, key="data.source")
    version = corpus_version(config.data, fingerprint_of(config.data, source))
    return Preparation(config=config, store=store, source=source, version=version, reporter=reporter)


def outline(config: Config) -> list[tuple[str, str]]:
    """Return what `prepare` would do: stages, expected sizes, and where it would write.

    Lists the source's files, writes nothing.
    """
    data = config.data
    store = open_store(config.store)
    source = make(data.source.target, data.source.args, key="data.source")
    version = corpus_version(data, fingerprint_of(data, source))
    rows = [("source", data.source.target)]
    if hasattr(source, "pieces"):
        pieces = source.pieces()
        rows.append(
            (
                "input",
                f"{plural(len(pieces), 'file')}, {format_bytes(sum(piece.size for piece in pieces))} as stored",
            )
        )
    if isinstance(source, ChatFiles):
        stages = ["read", "render", "tokenize"]
    elif has_tokens(source):
        stages = ["tokens"]
    else:
        dedup = [
            name for name, on in (("exact_dedup", data.exact_dedup), ("near_dedup", data.near_dedup.enabled)) if on
        ]
        stages = ["read", *stages_of(data), *dedup, "write", "tokenize"]
    rows.append(("stages", " -> ".join(stages)))
    if data.target_tokens:
        text = data.target_tokens / (1 - data.validation_fraction) * data.bytes_per_token
        width = 2 if config.tokenizer.vocab_size <= 2**16 else 4
        shards = format_bytes(width * data.target_tokens)
        target = f"{format_count(data.target_tokens)} tokens: about {format_bytes(text)} of text, {shards} of shards"
        rows.append(("stops at", target))
    rows.append(("workers", str(worker_count(data.workers)) if config.engine == "local" else "of Spark"))
    rows.append(("corpus", _there(store, f"corpora/{data.name}/{version}")))
    rows.append(("tokens", _tokens_row(store, data.name, version, config.tokenizer)))
    return rows


def _tokens_row(store: Store, dataset: str, version: str, tokenizer: TokenizerConfig) -> str:
    id_: str | None = tokenizer.name
    if isinstance(tokenizer, BPETokenizerConfig):
        id_ = trained_tokenizer_id(store, dataset, version, tokenizer)
    elif isinstance(tokenizer, HFTokenizerConfig):
        id_ = tokenizer.id
    if id_ is None:  # its id ends in a hash of what it will learn; a URL would escape the brackets
        return f"{store.url(f'tokens/{dataset}/{version}')}/{tokenizer.name}-<hash>"
    return _there(store, tokens_folder(dataset, version, id_))


def _there(store: Store, folder: str) -> str:
    return store.url(folder) + (
        " (already there)"
        if store.exists(f"{folder}/manifest.json") or store.exists(f"{folder}/train/manifest.json")
        else ""
    )


def describe(store: Store, prepared: Prepared) -> str:
    splits = [prepared.train] + ([prepared.validation] if prepared.validation else [])
    counts = ", ".join(
        f"{m.split} {format_count(m.tokens)} tokens in {plural(m.documents, 'document')} "
        f"and {plural(len(m.shards), 'shard')}"
        for m in splits
    )
    return f"prepared {counts}\n  {store.url(prepared.folder)}"


def _make_corpus(work: Preparation) -> CorpusManifest:
    store = work.store
    data = work.data
    version = work.version
    try:
        corpus = open_corpus(store, data.name, version)
    except NotFound:
        if work.jobs is None:
            corpus = write_corpus(store, data, work.source, version, work.reporter.progress)
        else:
            corpus = write_corpus_on_spark(store, data, work.source, version, work.jobs)
    rows = [("read", f"{plural(corpus.documents_read, 'document')}, {format_bytes(corpus.text_bytes_read)}")]
    for stage in corpus.stages:
        documents = f"{stage.documents_in:,} -> {plural(stage.documents_out, 'document')}"
        rows.append((stage.name, f"{documents}, {format_bytes(stage.bytes_in)} -> {format_bytes(stage.bytes_out)}"))
    rows += [(f"removed by {rule}", plural(count, "document")) for rule, count in corpus.removed.items()]
    rows += [("kept", f"{plural(corpus.documents, 'document')}, {format_bytes(corpus.text_bytes)}")]
    rows += [("examples", store.url(f"{corpus.folder}/report.json"))]
    work.reporter.table(f"corpus {data.name} {version}", rows)
    return corpus


def _given_tokenizer(work: Preparation) -> Tokenizer | None:
    """Return the tokenizer, unless it learns from the corpus."""
    if isinstance(work.config.tokenizer, BPETokenizerConfig):
        return None
    tokenizer = open_tokenizer(work.config.tokenizer, work.store)
    work.reporter.note(f"tokenizer {tokenizer.id}: {tokenizer.vocab_size} tokens, {describe_begin(tokenizer)}")
    return tokenizer


def _train_tokenizer(work: Preparation, corpus: CorpusManifest | None) -> Tokenizer:
    settings = work.config.tokenizer
    store = work.store
    assert isinstance(settings, BPETokenizerConfig)
    if corpus is None:  # no text to learn from: only the 256 bytes, or an error; random tokens mean nothing anyway
        texts = _random_words(settings.vocab_size) if isinstance(work.source, Synthetic) else iter(())
        trained = train_bpe(settings, texts)
        store_tokenizer(trained, store)
        return trained
    known = trained_tokenizer_id(store, corpus.dataset, corpus.version, settings)
    if known is not None:
        return open_tokenizer(settings, store, known)
    trained = train_bpe(settings, _sample(store, corpus, settings.sample_bytes))
    key = trained_tokenizer_key(corpus.dataset, corpus.version, settings)
    store.write(key, store_tokenizer(trained, store).encode())
    made = "trained on the corpus" if settings.vocab_size > BYTE_VOCABULARY else "one for each byte and the end of text"
    work.reporter.note(f"tokenizer {trained.id}: {trained.vocab_size} tokens, {made}, {describe_begin(trained)}")
    return trained


def _random_words(vocab_size: int) -> Iterator[str]:
    """Yield words from which a vocabulary of this size can be learned, always the same."""
    generator = random.Random(0)
    for _ in range(vocab_size):
        yield " ".join("".join(generator.choices(string.ascii_lowercase, k=8)) for _ in range(8))


def _sample(store: Store, corpus: CorpusManifest, sample_bytes: int) -> Iterator[str]:
    """Yield texts from every part, so that a tokenizer sees the whole corpus and not only its start."""
    share = sample_bytes / max(sample_bytes, corpus.text_bytes)
    for part in corpus.parts:
        left = share * part.text_bytes
        for document in read_part(store, corpus.folder, part):
            if left <= 0:
                break
            left -= len(document.text.encode())
            yield document.text


def _write_splits(work: Preparation, folder: str, tokenizer: Tokenizer, corpus: CorpusManifest | None) -> Prepared:
    store = work.store
    data = work.data
    made_from: dict[str, Any] = {"dataset": data.name, "version": work.version, "recipe": recipe_hash(data)}
    with (
        ShardWriter(store, f"{folder}/train", "train", tokenizer, data.shard_tokens) as train,
        ShardWriter(store, f"{folder}/validation", "validation", tokenizer, data.shard_tokens) as validation,
    ):
        splits = SplitWriters(store, folder, train, validation, data.validation_fraction)
        chats = None
        if work.jobs is not None and corpus is not None:
            tokens = spark_tokens(store, corpus, work.config.tokenizer, tokenizer, folder)
            fill_on_spark(work.jobs, splits, data, tokens)
            parts: Iterator[TokenizedSlice] = iter(())
        elif isinstance(work.source, ChatFiles):
            chats = ChatRows.of(work.source, tokenizer, stop_at_bad=data.bad_records == "stop")
            parts = chats.slices()
        elif corpus is None:
            parts = _synthetic(work.source, tokenizer)
        else:
            parts = tokenize_corpus(store, corpus, tokenizer, data.workers, splits.first_part, splits.wanted)
        _fill(work, splits, parts, corpus)
        if not train.tokens:
            raise SkytrainError(no_training(data, work.source, _document_ids(work, corpus, validation.documents)))
        _check_target(data, corpus, train)
        work.reporter.progress("tokens", train.tokens, train.tokens)
        if chats is not None:
            made_from |= {"chat": chats.report.summary(), "template": chats.template.sha256}
            store.write(
                f"{folder}/{TEMPLATE_FILE}", chats.template.source.encode()
            )  # for exports of models trained on it
            work.reporter.table(f"conversations of {data.name} {work.version}", chats.report.table())
        # The training split last: a folder that has it is complete.
        if validation.tokens:
            validation.finish(made_from)
        train.finish(made_from)
    store.delete(splits.note)
    store.delete_all(f"{folder}/spark")
    prepared = open_prepared(store, folder)
    assert prepared is not None
    return prepared


def _fill(
    work: Preparation, splits: SplitWriters, parts: Iterator[TokenizedSlice], corpus: CorpusManifest | None
) -> None:
    """Add tokenized documents to their splits until the source ends or the target is reached."""
    data = work.data
    train = splits.writers["train"]
    reported = time.monotonic()
    pace = Pace()
    had_tokens = train.tokens
    done_bytes = 0
    before = sum(part.text_bytes for part in corpus.parts[: splits.first_part]) if corpus else 0
    for part in parts:
        for document in part.documents():
            if data.target_tokens and train.tokens >= data.target_tokens:
                return
            split = split_of(document.id, data.validation_fraction)
            position = [part.part, document.number]
            splits.add(split, position, document.tokens, document.text_bytes, document.trained)
        done_bytes += int(part.text_bytes.sum())
        speed = pace.per_second(train.tokens)
        if time.monotonic() - reported > REPORT_SECONDS:
            reported = time.monotonic()
            made = train.tokens - had_tokens
            # Without a target, the rest is taken to have as many tokens per byte as the text so far.
            total: float | None = data.target_tokens
            if corpus and not total:
                total = train.tokens + made * (corpus.text_bytes - before - done_bytes) / max(1, done_bytes)
            if total is not None and train.tokens >= total:
                continue  # the last line is printed once, when the stage ends
            detail = f"{format_count(speed)} tokens/s" if speed else ""
            work.reporter.progress("tokens", train.tokens, total, detail, pace.seconds_left(train.tokens, total))


def _synthetic(source: Any, tokenizer: Tokenizer) -> Iterator[TokenizedSlice]:
    if isinstance(source, TokenFiles | ParquetTokens) and source.eot is None:
        source = replace(source, eot=tokenizer.eot)
    for i, ids in enumerate(source.token_documents(tokenizer.vocab_size)):
        yield TokenizedSlice(
            part=0, first=i, ids=[f"{i}"], tokens=ids, ends=np.array([len(ids)]), text_bytes=np.zeros(1, np.int64)
        )


def _document_ids(work: Preparation, corpus: CorpusManifest | None, documents: int) -> Iterator[str]:
    """Return, in order, the ids that decide which split each document is in."""
    if isinstance(work.source, ChatFiles):
        return (row.id for row in work.source.chats())
    if corpus is None:
        return (str(i) for i in range(documents))
    return (document.id for part in corpus.parts for document in read_part(work.store, corpus.folder, part))


def _check_target(data: DataConfig, corpus: CorpusManifest | None, train: ShardWriter) -> None:
    if data.target_tokens and corpus is not None and not corpus.complete and train.tokens < data.target_tokens:
        better = data.bytes_per_token * data.target_tokens / train.tokens * 1.05
        raise SkytrainError(
            f"data.target_tokens={format_count(data.target_tokens)}: "
            f"the text that was kept gives only {format_count(train.tokens)} tokens\n"
            f"  keep more of the source: data.bytes_per_token={better:.1f}"
        )


class SplitWriters:
    """The writers of both splits, and their progress in the store: finished shards are not written again."""

    def __init__(
        self, store: Store, folder: str, train: ShardWriter, validation: ShardWriter, validation_fraction: float
    ) -> None:
        self.validation_fraction = validation_fraction
        self.store = store
        self.note = f"{folder}/progress.json"
        self.writers = {"train": train, "validation": validation}
        # For each split: what its finished shards hold, and the first document after them.
        self.state: dict[str, dict[str, Any]] = {
            name: {"shards": [], "text_bytes": 0, "next": [0, 0]} for name in self.writers
        }
        try:
            state = read_object(store, self.note, at_most=MANIFEST_BYTES, remedy=AGAIN)
        except NotFound:
            return
        with record_of(store, self.note, AGAIN):
            for name, writer in self.writers.items():
                writer.shards.extend(
                    build(Shard, {"mask_sha256": None, "mask_bytes": None, **shard}) for shard in state[name]["shards"]
                )
                writer.text_bytes = state[name]["text_bytes"]
                if not is_whole(writer.text_bytes) or not all(map(is_whole, state[name]["next"])):
                    raise TypeError("it does not say how far the work is")
        self.state = state

    @property
    def first_part(self) -> int:
        return min(state["next"][0] for state in self.state.values())

    def wanted(self, part: int, number: int, document_id: str) -> bool:
        """Return whether a document is still to be written; the other split's shards may be far ahead."""
        return [part, number] >= self.state[split_of(document_id, self.validation_fraction)]["next"]

    def add(
        self, split: str, position: list[int], ids: np.ndarray, text_bytes: int, trained: np.ndarray | None = None
    ) -> None:
        """Add a document; `trained` says for each token whether the loss is computed on it, where that is not all."""
        writer = self.writers[split]
        state = self.state[split]
        if position < state["next"]:
            return
        shards = len(writer.shards)
        before = writer.text_bytes
        if trained is None:
            writer.add(ids, text_bytes)
        else:
            writer.add_masked(ids, trained, text_bytes)
        if len(writer.shards) > shards:
            self.state[split] = {
                "shards": [asdict(shard) for shard in writer.shards],
                "text_bytes": before,
                "next": position,
            }
            self.store.write(self.note, json.dumps(self.state).encode())


def fill_on_spark(jobs: SparkJobs, splits: SplitWriters, data: DataConfig, tokens: SparkTokens) -> None:
    """Let Spark write the shards of both splits."""
    filled = write_shards_on_spark(jobs, tokens, data.shard_tokens, data.validation_fraction, data.target_tokens)
    for name, split in filled.items():
        writer = splits.writers[name]
        writer.shards[:] = split.shards
        writer.text_bytes = split.text_bytes


def no_validation(data: DataConfig, source: Any, documents: int, document_ids: Iterable[str]) -> str:
    """Return why there is no validation split, and what gives one."""
    if not data.validation_fraction:
        return "no validation split: data.validation_fraction=0"
    return (
        f"no validation split: by chance, none of {plural(documents, 'document')} is in it at "
        f"data.validation_fraction={data.validation_fraction:g}\n  {_remedy(source, document_ids)}"
    )


def no_training(data: DataConfig, source: Any, document_ids: Iterable[str]) -> str:
    """Return why the training split is empty, and what fills it."""
    return (
        f"data={data.name}: the training split is empty: data.validation_fraction={data.validation_fraction:g} "
        f"took every document\n  {_remedy(source, document_ids)}"
    )


def _remedy(source: Any, document_ids: Iterable[str]) -> str:
    fraction = dividing_fraction(islice(document_ids, MAX_SAMPLED_IDS), SUGGESTED_VALIDATION_SHARE)
    if fraction is not None:
        return f"more documents give both splits, and so does data.validation_fraction={fraction:g}"
    by_separator = (
        ", or name the line that ends a document, such as data.source.separator='<|endoftext|>'"
        if getattr(source, "separator", "") is None
        else ""
    )
    return (
        f"a single document cannot be divided: give more documents{by_separator}; "
        "data.validation_fraction=0 puts everything into training"
    )
