"""Opens token files of other projects without conversion."""

from __future__ import annotations

import fnmatch
import hashlib
from dataclasses import dataclass
from typing import Literal

import numpy as np

from ..config import SkytrainError
from ..storage import Stat, Store, open_store, read_data
from .cache import ShardCache
from .foreign import parse_megatron_index
from .manifest import Manifest, Shard, TokenizerFacts
from .reader import TokenFile, TokenSplit
from .shards import HEADER_BYTES, Split, unpack_header

Format = Literal["llmc", "nanogpt", "megatron", "webdataset"]


@dataclass(frozen=True)
class FileLayout:
    """The file format of another project; `dtype` is for nanoGPT files, which do not record theirs."""

    format: Format
    dtype: str = "uint16"


def open_token_files(
    pattern: str,
    layout: FileLayout,
    split: Split,
    tokenizer: TokenizerFacts,
    cache: ShardCache,
    *,
    vocab_size: int,
) -> TokenSplit:
    """Open the files matching a path or s3:// URL, which may have `*` in its last part, sorted by name.

    Their hashes are unknown, so changed bytes go undetected; tokens outside `vocab_size` are detected.
    """
    format = layout.format
    store, stats = find_token_files(pattern, "*.bin" if format == "megatron" else None, cache.wait_seconds)
    files = []
    documents = []
    for stat in stats:
        file, count = _describe(store, stat, format, layout.dtype, cache, tokenizer)
        files.append(file)
        documents.append(count)
    if len({file.dtype for file in files}) > 1:
        raise SkytrainError(
            f"{pattern} names files of several types: {', '.join(sorted({file.dtype for file in files}))}"
        )
    shards = tuple(
        Shard(name=file.key, tokens=file.tokens, documents=count, bytes=file.bytes, sha256=file.sha256, index_sha256="")
        for file, count in zip(files, documents, strict=True)
    )
    manifest = Manifest(
        split=split,
        dtype=files[0].dtype,
        tokenizer=tokenizer,
        tokens=sum(file.tokens for file in files),
        documents=sum(documents),
        text_bytes=0,
        shards=shards,
        made_from={"format": format, "files": pattern},
    )
    return TokenSplit(manifest, files, store, cache, vocab_limit=vocab_size)


def find_token_files(pattern: str, only: str | None = None, patience_seconds: float = 60.0) -> tuple[Store, list[Stat]]:
    folder, _, name = pattern.rpartition("/")
    store = open_store(folder or ".").patient(patience_seconds)
    files = [
        stat
        for stat in store.list()
        if fnmatch.fnmatch(stat.key, name) and "/" not in stat.key and fnmatch.fnmatch(stat.key, only or "*")
    ]
    if not files:
        raise SkytrainError(f"loader.files: nothing matches {pattern}")
    for stat in files:
        if not stat.size:
            raise SkytrainError(f"loader.files: {store.url(stat.key)} is empty")
    return store, files


def _describe(
    store: Store, stat: Stat, format: Format, dtype: str, cache: ShardCache, tokenizer: TokenizerFacts
) -> tuple[TokenFile, int]:
    """Return the location and number of a file's tokens, and its number of documents if the format records it."""
    name = hashlib.sha256(
        f"{format} {tokenizer.eot} {store.url(stat.key)} {stat.size} {stat.etag}".encode()
    ).hexdigest()
    path = store.local_path(stat.key) or cache.path(name)
    where = store.url(stat.key)
    if format == "webdataset":
        return _describe_tar(store, stat, name, cache, tokenizer), 0
    offset = 0
    documents = 0
    if format == "llmc":
        header = unpack_header(store.read_range(stat.key, 0, HEADER_BYTES))
        if header is None:
            raise SkytrainError(f"{where} has no llm.c header\n  is it loader.files.format=nanogpt, which has none?")
        dtype, claimed = header
        offset = HEADER_BYTES
    elif format == "megatron":
        index_key = stat.key.removesuffix(".bin") + ".idx"
        index = parse_megatron_index(read_data(store, index_key), store.url(index_key))
        dtype = index.dtype
        claimed = int(index.lengths.sum())
        documents = index.documents
    item_bytes = np.dtype(dtype).itemsize
    tokens, rest = divmod(stat.size - offset, item_bytes)
    if rest or (format != "nanogpt" and tokens != claimed):
        promised = f"{claimed:,} {dtype} tokens" if format != "nanogpt" else f"whole {dtype} tokens"
        raise SkytrainError(
            f"{where} has {stat.size:,} bytes, which are not {promised}: it is truncated or of another making"
        )
    return TokenFile(
        path=path, dtype=dtype, offset=offset, tokens=tokens, bytes=stat.size, key=stat.key, sha256=name, kind="foreign"
    ), documents


def _describe_tar(store: Store, stat: Stat, name: str, cache: ShardCache, tokenizer: TokenizerFacts) -> TokenFile:
    # Counting the tokens of a tar requires reading it, so it is first converted into a shard in the cache.
    file = TokenFile(
        path=cache.path(name),
        dtype="uint32",
        offset=HEADER_BYTES,
        tokens=0,
        bytes=2 * stat.size,
        key=stat.key,
        sha256=name,
        kind="tar",
    )
    facts = Manifest(
        split="train", dtype="uint32", tokenizer=tokenizer, tokens=0, documents=0, text_bytes=0, shards=(), made_from={}
    )
    pin = TokenSplit(facts, [file], store, cache).supply(0, wait=True)
    assert pin is not None
    with pin.path.open("rb") as opened:
        header = unpack_header(opened.read(HEADER_BYTES))
    assert header is not None
    return TokenFile(
        path=file.path,
        dtype="uint32",
        offset=HEADER_BYTES,
        tokens=header[1],
        bytes=file.bytes,
        key=stat.key,
        sha256=name,
        kind="tar",
    )
