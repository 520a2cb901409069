"""File formats of other projects: llm.c, nanoGPT, Megatron, and WebDataset-style tar files of tokens."""

from __future__ import annotations

import io
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ..config import SkytrainError
from ..storage import Store, parse_json, unpack_gzip
from .cache import ShardCache
from .shards import HEADER_BYTES, MAX_SHARD_TOKENS, pack_header

# Megatron's dtype codes in .idx files, without the floating-point ones.
MEGATRON_MAGIC = b"MMIDIDX\x00\x00"
MEGATRON_DTYPES = {1: "uint8", 2: "int8", 3: "int16", 4: "int32", 5: "int64", 8: "uint16"}
MEGATRON_HEADER_BYTES = 34
TOKEN_SUFFIXES = (".npy", ".json", ".json.gz")
MAX_SAMPLE_BYTES = 1 << 30  # a sample is read whole: a few compressed kilobytes must not fill the memory


@dataclass(frozen=True)
class MegatronIndex:
    dtype: str
    lengths: np.ndarray  # tokens of each sequence, in the order of the .bin file
    documents: int


def parse_megatron_index(data: bytes, where: str) -> MegatronIndex:
    if not data.startswith(MEGATRON_MAGIC) or len(data) < MEGATRON_HEADER_BYTES:
        raise SkytrainError(f"{where} is not a Megatron index: it does not begin with {MEGATRON_MAGIC[:7].decode()}")
    version = int(np.frombuffer(data, "<u8", 1, 9)[0])
    code = data[17]
    if version != 1 or code not in MEGATRON_DTYPES:
        raise SkytrainError(
            f"{where} is a Megatron index of version {version} and type {code}; version 1 with integer tokens is read"
        )
    sequences, documents = (int(count) for count in np.frombuffer(data, "<u8", 2, 18))
    needed = MEGATRON_HEADER_BYTES + sequences * 12 + documents * 8
    if len(data) < needed:
        raise SkytrainError(
            f"{where} has {len(data):,} bytes, its {sequences:,} sequences and {documents:,} documents need {needed:,}: it is truncated"
        )
    lengths = np.frombuffer(data, "<i4", sequences, MEGATRON_HEADER_BYTES).astype(np.int64)
    pointers = np.frombuffer(data, "<i8", sequences, MEGATRON_HEADER_BYTES + 4 * sequences)
    dtype = MEGATRON_DTYPES[code]
    starts = np.concatenate([[0], np.cumsum(lengths)])[:-1] * np.dtype(dtype).itemsize
    if not np.array_equal(starts, pointers):
        raise SkytrainError(
            f"{where} points into its .bin out of order; only sequences that follow each other are read"
        )
    return MegatronIndex(dtype, lengths, max(0, documents - 1))


def copy_foreign(kind: str, store: Store, key: str, path: Path, cache: ShardCache, eot: int) -> None:
    """Download another project's file to `path`; a tar is converted into a shard."""
    if kind == "foreign":
        return cache.download(store, key, path, sha256=None)
    assert kind == "tar"
    source = store.local_path(key)
    copied = path.with_name("source.tar")
    if source is None:
        cache.download(store, key, copied, sha256=None)
        source = copied
    temporary = path.with_name("tokens.part")
    write_tar_as_shard(source, temporary, store.url(key), eot)
    temporary.replace(path)
    copied.unlink(missing_ok=True)


def write_tar_as_shard(source: Path, target: Path, where: str, eot: int) -> None:
    """Write the tokens of a tar's samples, in tar order, as a uint32 shard.

    A sample without an end-of-text token is one document and gets one prepended; a sample with some was cut from a
    token stream and is copied unchanged.
    """
    tokens = 0
    with target.open("wb") as file:
        file.write(bytes(HEADER_BYTES))
        for name, ids in tar_samples(source, where):
            if len(ids) and not 0 <= int(ids.min()) <= int(ids.max()) < 2**32:
                raise SkytrainError(
                    f"{where}: {name} holds {int(ids.min())} to {int(ids.max())}, which are not token ids"
                )
            if eot not in ids:
                ids = np.concatenate([[eot], ids])
            file.write(ids.astype("<u4").tobytes())
            tokens += len(ids)
            if tokens > MAX_SHARD_TOKENS:  # now: a few compressed bytes must not fill the disk
                break
        if not 0 < tokens <= MAX_SHARD_TOKENS:
            raise SkytrainError(
                f"{where} holds {tokens:,} tokens; a tar of tokens has at least one and at most {MAX_SHARD_TOKENS:,}"
            )
        file.seek(0)
        file.write(pack_header("uint32", tokens))


def tar_samples(source: Path, where: str) -> Iterator[tuple[str, np.ndarray]]:
    """Yield the name and tokens of each member that is a .npy array or a .json (.gz) list of integers.

    Other members are ignored.
    """
    others = set()
    try:
        # Stream mode: a tar has no index and is read once from start to end.
        with tarfile.open(source, "r|*") as tar:
            for member in tar:
                name = member.name.rpartition("/")[2]
                suffix = name[name.find(".") :] if "." in name else ""
                if not member.isfile() or suffix not in TOKEN_SUFFIXES:
                    others.add(suffix or name)
                    continue
                if member.size > MAX_SAMPLE_BYTES:
                    raise SkytrainError(
                        f"{where}: {member.name} has {member.size:,} bytes, more than a sample can have"
                    )
                opened = tar.extractfile(member)
                assert opened is not None
                yield member.name, _tokens(opened.read(), suffix, f"{where}: {member.name}")
    except SkytrainError:
        raise
    except Exception as error:  # of tarfile and of three decompressors, for what is none of theirs
        raise SkytrainError(f"{where} cannot be read as a tar: {error}") from None
    if others & {".txt", ".text"}:
        raise SkytrainError(f"{where} holds text, not tokens\n  prepare it first: skytrain prepare")


def _tokens(data: bytes, suffix: str, where: str) -> np.ndarray:
    try:
        if suffix == ".npy":
            ids = np.load(io.BytesIO(data), allow_pickle=False)
        else:
            ids = np.array(parse_json(unpack_gzip(data, MAX_SAMPLE_BYTES) if suffix == ".json.gz" else data))
    except Exception as error:  # numpy's header is parsed as Python, which can fail in any way
        raise SkytrainError(f"{where} cannot be read: {error}") from None
    if ids.ndim != 1 or ids.dtype.kind not in "iu":
        raise SkytrainError(f"{where} is not a list of token ids: {ids.ndim} dimensions of {ids.dtype}")
    return ids
