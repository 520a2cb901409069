"""Tokenizes a corpus on Spark, with the bytes of `ShardWriter`: tokens by part, shards planned in order, then copied."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from ..config import SkytrainError, TokenizerConfig
from ..corpus import CorpusManifest, FinishedStages, SparkJobs, raised
from ..storage import Store, read_numbers
from .manifest import Shard, shard_fields
from .shards import MAX_SHARD_TOKENS, Split, dtype_for, pack_header, split_of
from .tokenizers import Tokenizer, open_tokenizer
from .tokenizing import slices_of, tokenize_slice

# One record for each document of a part, in order. `tokens` includes the end of text before it.
COUNTED = np.dtype([("validation", np.uint8), ("tokens", "<u4"), ("text_bytes", "<u8")])
SPLITS: tuple[Split, Split] = ("train", "validation")
COPY_BYTES = 32 << 20


class ShardSlice(NamedTuple):
    """Documents of a part that go into a shard: their places among those of the split, and where their tokens are."""

    part: int
    first: int
    last: int
    start: int  # offset in tokens
    end: int


class PlannedShard(NamedTuple):
    split: Split
    number: int
    slices: tuple[ShardSlice, ...]


@dataclass(frozen=True)
class SparkTokens:
    """The settings that tasks need to tokenize the parts and to write the shards."""

    store: Store
    corpus: CorpusManifest
    settings: TokenizerConfig
    tokenizer_id: str
    folder: str  # folder of the tokens
    dtype: str
    shards: tuple[PlannedShard, ...] = ()

    @property
    def work(self) -> str:
        return f"{self.folder}/spark"

    def tokenizer(self) -> Tokenizer:
        return _opened(self.settings, self.store.root, self.tokenizer_id, self.store)


@dataclass
class SplitPlan:
    """The shards of one split as far as they are planned."""

    split: Split
    shard_tokens: int
    shards: list[list[ShardSlice]] = field(default_factory=list)
    tokens: int = 0
    text_bytes: int = 0
    filled: int = 0  # tokens of the last shard

    def add(self, part: int, counted: np.ndarray) -> None:
        """Add the documents of a part. As in `ShardWriter`, no document is split."""
        ends = np.cumsum(counted["tokens"], dtype=np.int64)
        at = 0
        while at < len(ends):
            base = int(ends[at - 1]) if at else 0
            fitting = int(np.searchsorted(ends, base + self.shard_tokens - self.filled, side="right"))
            if fitting <= at and self.filled:  # also after a document longer than a shard
                self.filled = 0
                continue
            if not self.filled:
                self.shards.append([])
            last = max(fitting, at + 1)
            self.shards[-1].append(ShardSlice(part=part, first=at, last=last, start=base, end=int(ends[last - 1])))
            self.filled += int(ends[last - 1]) - base
            at = last
        self.tokens += int(ends[-1]) if len(ends) else 0
        self.text_bytes += int(counted["text_bytes"].sum())


class FilledSplit(NamedTuple):
    shards: list[Shard]
    text_bytes: int


def write_shards_on_spark(
    jobs: SparkJobs, work: SparkTokens, shard_tokens: int, validation_fraction: float, target_tokens: int | None
) -> dict[Split, FilledSplit]:
    """Write the shards of both splits and return them; the caller writes the manifests.

    Started again after an interruption, it continues after the last finished stage.
    """
    stages = FinishedStages(work.store, work.work)
    shared = jobs.share((work, validation_fraction))
    parts = len(work.corpus.parts)
    stages.get("tokenized", lambda: list(raised(jobs.results("tokenize", _tokenize_part, shared, parts))))
    plans = _plan(work, shard_tokens, target_tokens)
    planned = [
        PlannedShard(plan.split, number, tuple(slices)) for plan in plans for number, slices in enumerate(plan.shards)
    ]
    shared_plan = jobs.share(replace(work, shards=tuple(planned)))
    written = stages.get(
        "shards", lambda: list(raised(jobs.results("shards", _write_shard, shared_plan, len(planned))))
    )
    splits: dict[Split, FilledSplit] = {plan.split: FilledSplit([], plan.text_bytes) for plan in plans}
    for shard, fields in zip(planned, written, strict=True):
        splits[shard.split].shards.append(Shard(**fields))
    return splits


def _plan(work: SparkTokens, shard_tokens: int, target_tokens: int | None) -> list[SplitPlan]:
    """Assign documents to shards in order; this process reads 13 bytes for each document, part by part."""
    train, validation = plans = [SplitPlan(split=split, shard_tokens=shard_tokens) for split in SPLITS]
    for part in range(len(work.corpus.parts)):
        counted = _read_counted(work, part)
        if target_tokens:
            before = train.tokens + np.cumsum(np.where(counted["validation"], 0, counted["tokens"]), dtype=np.int64)
            before = np.concatenate([[train.tokens], before[:-1]])
            counted = counted[: int(np.searchsorted(before, target_tokens))]
        train.add(part, counted[counted["validation"] == 0])
        validation.add(part, counted[counted["validation"] == 1])
        if target_tokens and train.tokens >= target_tokens:
            break
    return plans


def _read_counted(work: SparkTokens, part: int) -> np.ndarray:
    return read_numbers(work.store, f"{work.work}/{part:05d}.documents", COUNTED)


@lru_cache(maxsize=1)
def _opened_once(key: tuple[str, str]) -> list[Tokenizer]:
    return []


def _opened(settings: TokenizerConfig, root: str, id_: str, store: Store) -> Tokenizer:
    """Open a tokenizer once in each worker process."""
    kept = _opened_once((root, id_))
    if not kept:
        kept.append(open_tokenizer(settings, store, id_))
    return kept[0]


def _tokenize_part(shared: tuple[SparkTokens, float], part: int) -> int:
    """Write the tokens of a part by split, each document begun by the end of text, and one record for each document."""
    work, validation_fraction = shared
    tokenizer = work.tokenizer()
    stored = np.dtype(work.dtype).newbyteorder("<")
    begin = np.array([tokenizer.eot], stored)
    pieces: dict[Split, list[np.ndarray]] = {split: [np.empty(0, stored)] for split in SPLITS}
    counted: list[tuple[int, int, int]] = []
    for slice_ in slices_of(work.store, work.corpus, part):
        for document in tokenize_slice(tokenizer, slice_).documents():
            split = split_of(document.id, validation_fraction)
            length = len(document.tokens) + 1
            _check(document.tokens, length, tokenizer)
            pieces[split] += [begin, document.tokens.astype(stored, copy=False)]
            counted.append((split == "validation", length, document.text_bytes))
    for split, arrays in pieces.items():
        work.store.write(f"{work.work}/{part:05d}.{split}", np.concatenate(arrays).tobytes())
    work.store.write(f"{work.work}/{part:05d}.documents", np.array(counted, COUNTED).tobytes())
    return len(counted)


def _check(ids: np.ndarray, length: int, tokenizer: Tokenizer) -> None:
    if length > MAX_SHARD_TOKENS:
        raise SkytrainError(
            f"a document of {length:,} tokens does not fit in a shard ({MAX_SHARD_TOKENS:,} at most)\n  split it in the source"
        )
    assert not len(ids) or int(ids.max()) < tokenizer.vocab_size


def _write_shard(work: SparkTokens, number: int) -> dict[str, Any]:
    shard = work.shards[number]
    name = f"shard-{shard.number:05d}"
    width = np.dtype(work.dtype).itemsize
    tokens = sum(slice_.end - slice_.start for slice_ in shard.slices)
    body = [pack_header(work.dtype, tokens)]
    lengths = [np.empty(0, np.uint64)]
    for slice_ in shard.slices:
        body += _ranges(work, shard.split, slice_, width)
        counted = _read_counted(work, slice_.part)
        mine = counted[counted["validation"] == (shard.split == "validation")]["tokens"]
        lengths.append(mine[slice_.first : slice_.last].astype(np.uint64))
    index = np.cumsum(np.concatenate(lengths), dtype="<u8").tobytes()
    key = f"{work.folder}/{shard.split}/{name}"
    work.store.write_parts(f"{key}.bin", [memoryview(part) for part in body])
    work.store.write(f"{key}.idx", index)
    digest = hashlib.sha256()
    for part in body:
        digest.update(part)
    made = Shard(
        name=name,
        tokens=tokens,
        documents=len(index) // 8,
        bytes=sum(map(len, body)),
        sha256=digest.hexdigest(),
        index_sha256=hashlib.sha256(index).hexdigest(),
    )
    return shard_fields(made)


def _ranges(work: SparkTokens, split: Split, slice_: ShardSlice, width: int) -> Iterator[bytes]:
    key = f"{work.work}/{slice_.part:05d}.{split}"
    at = slice_.start * width
    end = slice_.end * width
    while at < end:
        size = min(COPY_BYTES, end - at)
        yield work.store.read_range(key, at, size)
        at += size


def spark_tokens(
    store: Store, corpus: CorpusManifest, settings: TokenizerConfig, tokenizer: Tokenizer, folder: str
) -> SparkTokens:
    return SparkTokens(
        store=store,
        corpus=corpus,
        settings=settings,
        tokenizer_id=tokenizer.id,
        folder=folder,
        dtype=dtype_for(tokenizer.vocab_size),
    )
