"""Converts prepared tokens to and from the file formats of other projects.

llm.c and Skytrain put the end-of-text token before each document; nanoGPT and Megatron put it after. Between reader
and writer, documents are passed without it.
"""

from __future__ import annotations

import io
import tarfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import IO, Any, Literal

import numpy as np

from ..config import ConfigError, SkytrainError
from ..corpus import InputFile, find_files
from ..storage import Store, read_numbers
from .foreign import MEGATRON_DTYPES, MEGATRON_MAGIC, parse_megatron_index, tar_samples
from .manifest import Manifest
from .parquet_tokens import cut_documents, read_token_rows
from .shards import HEADER_BYTES, MAX_SHARD_TOKENS, pack_header, sha256_of_file, unpack_header

TokenFormat = Literal["llmc", "nanogpt", "megatron", "parquet", "webdataset"]
TAR_DOCUMENTS = 100_000
ROW_GROUP_DOCUMENTS = 10_000
MEGATRON_SMALL_VOCABULARY = 65_500  # below this size Megatron writes uint16, otherwise int32


def split_documents(store: Store, prefix: str, manifest: Manifest, scratch: Path) -> Iterator[np.ndarray]:
    """Yield every document of a prepared split without the end-of-text token. Each shard is verified before use.

    Other projects' formats have no loss mask, so data with one is refused.
    """
    if manifest.masked:
        raise SkytrainError(
            f"{store.url(prefix)} has a loss mask, and the formats of other projects have no place for it\n"
            "  train on it here, or give the other project the rows themselves"
        )
    for shard in manifest.shards:
        key = f"{prefix}/{shard.name}.bin"
        path = store.local_path(key)
        if path is None:
            path = scratch / "shard.bin"
            store.download(key, path, sha256=shard.sha256)
        elif sha256_of_file(path) != shard.sha256:
            raise SkytrainError(f"{store.url(key)} was altered: its sha256 is not that of the manifest")
        ends = read_numbers(store, f"{prefix}/{shard.name}.idx", "<u8", shard.index_sha256).astype(np.int64)
        tokens = np.memmap(path, manifest.dtype, "r", HEADER_BYTES, (shard.tokens,))
        for start, end in pairwise([0, *ends.tolist()]):
            yield np.array(tokens[start + 1 : end])


def write_token_files(
    documents: Iterable[np.ndarray], format: TokenFormat, target: Path, manifest: Manifest
) -> list[Path]:
    """Write `target` with the format's extension, plus any companion files, and return the paths written."""
    target.parent.mkdir(parents=True, exist_ok=True)
    return _WRITERS[format](documents, target, manifest)


def _write_llmc(documents: Iterable[np.ndarray], target: Path, manifest: Manifest) -> list[Path]:
    paths: list[Path] = []
    file: IO[bytes] | None = None
    total = 0

    def close() -> None:
        if file is not None:
            file.seek(0)
            file.write(pack_header(manifest.dtype, total))
            file.close()

    for ids in documents:
        if file is None or total + len(ids) + 1 > MAX_SHARD_TOKENS:
            close()
            paths.append(target.with_name(f"{target.name}_{len(paths):06d}.bin"))
            file = paths[-1].open("wb")
            total = 0
            file.write(bytes(HEADER_BYTES))
        file.write(np.concatenate([[manifest.tokenizer.eot], ids]).astype(manifest.dtype).tobytes())
        total += len(ids) + 1
    close()
    return paths


def _write_nanogpt(documents: Iterable[np.ndarray], target: Path, manifest: Manifest) -> list[Path]:
    path = target.with_name(f"{target.name}.bin")
    with path.open("wb") as file:
        for ids in documents:
            file.write(np.concatenate([ids, [manifest.tokenizer.eot]]).astype(manifest.dtype).tobytes())
    return [path]


def _write_megatron(documents: Iterable[np.ndarray], target: Path, manifest: Manifest) -> list[Path]:
    dtype = "uint16" if manifest.tokenizer.vocab_size < MEGATRON_SMALL_VOCABULARY else "int32"
    code = next(number for number, name in MEGATRON_DTYPES.items() if name == dtype)
    tokens = target.with_name(f"{target.name}.bin")
    index = target.with_name(f"{target.name}.idx")
    lengths: list[int] = []
    with tokens.open("wb") as file:
        for ids in documents:
            file.write(np.concatenate([ids, [manifest.tokenizer.eot]]).astype(dtype).tobytes())
            lengths.append(len(ids) + 1)
    counts = np.array(lengths, "<i4")
    starts = np.concatenate([[0], np.cumsum(counts, dtype=np.int64)[:-1]]) if lengths else np.empty(0)
    with index.open("wb") as file:
        file.write(MEGATRON_MAGIC + (1).to_bytes(8, "little") + bytes([code]))
        file.write(len(lengths).to_bytes(8, "little") + (len(lengths) + 1).to_bytes(8, "little"))
        file.write(counts.tobytes() + (starts * np.dtype(dtype).itemsize).astype("<i8").tobytes())
        file.write(np.arange(len(lengths) + 1, dtype="<i8").tobytes())
    return [tokens, index]


def _write_parquet(documents: Iterable[np.ndarray], target: Path, manifest: Manifest) -> list[Path]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    path = target.with_name(f"{target.name}.parquet")
    kind = pa.list_(pa.uint16() if manifest.dtype == "uint16" else pa.uint32())
    with pq.ParquetWriter(path, pa.schema([("tokens", kind)]), compression="zstd") as writer:
        for batch in _groups(documents, ROW_GROUP_DOCUMENTS):
            writer.write_table(pa.table({"tokens": pa.array([ids.astype(manifest.dtype) for ids in batch], kind)}))
    return [path]


def _write_webdataset(documents: Iterable[np.ndarray], target: Path, manifest: Manifest) -> list[Path]:
    paths: list[Path] = []
    for batch in _groups(documents, TAR_DOCUMENTS):
        paths.append(target.with_name(f"{target.name}-{len(paths):06d}.tar"))
        with tarfile.open(paths[-1], "w") as tar:
            for i, ids in enumerate(batch):
                body = io.BytesIO()
                np.save(body, ids.astype(manifest.dtype))
                member = tarfile.TarInfo(f"{(len(paths) - 1) * TAR_DOCUMENTS + i:09d}.npy")
                member.size = body.tell()
                body.seek(0)
                tar.addfile(member, body)
    return paths


def _groups(documents: Iterable[np.ndarray], size: int) -> Iterator[list[np.ndarray]]:
    batch: list[np.ndarray] = []
    for ids in documents:
        batch.append(ids)
        if len(batch) == size:
            yield batch
            batch = []
    if batch:
        yield batch


_WRITERS: dict[str, Callable[[Iterable[np.ndarray], Path, Manifest], list[Path]]] = {
    "llmc": _write_llmc,
    "nanogpt": _write_nanogpt,
    "megatron": _write_megatron,
    "parquet": _write_parquet,
    "webdataset": _write_webdataset,
}


@dataclass(frozen=True)
class TokenFiles:
    """A source of token files that another project wrote; `prepare` turns them into shards of ours.

    `eot` is the end-of-text token that separates documents in llm.c's and nanoGPT's files; null means
    the one that begins a document in the tokenizer, or the vocabulary's last if that is not known.
    `dtype` is for nanoGPT's files, which do not say theirs.
    """

    paths: str | Sequence[str]
    format: str
    eot: int | None = None
    dtype: str = "uint16"

    def __post_init__(self) -> None:
        if self.format not in _WRITERS:
            raise ConfigError(
                "data.source.format", f"{self.format!r} is not a choice", hint=f"one of {', '.join(_WRITERS)}"
            )

    def fingerprint(self) -> dict[str, Any]:
        return {"files": [file.fingerprint() for file in self._files()]}

    def token_documents(self, vocab_size: int) -> Iterator[np.ndarray]:
        eot = vocab_size - 1 if self.eot is None else self.eot
        for file in self._files():
            if self.format == "parquet":
                yield from read_token_rows(file, "tokens", vocab_size)
                continue
            if file.store is not None:
                raise ConfigError("data.source.paths", f"{file.url}: token files are converted from a local folder")
            yield from self._read(Path(file.url), eot)

    def _files(self) -> list[InputFile]:
        files = find_files(self.paths)
        return [file for file in files if not (self.format == "megatron" and file.name.endswith(".idx"))]

    def _read(self, path: Path, eot: int) -> Iterator[np.ndarray]:
        if self.format == "llmc":
            return _read_llmc(path, eot)
        if self.format == "nanogpt":
            return cut_documents(np.memmap(path, self.dtype, "r"), eot)
        if self.format == "megatron":
            return _read_megatron(path, eot)
        return (ids for _, ids in tar_samples(path, str(path)))


def _read_llmc(path: Path, eot: int) -> Iterator[np.ndarray]:
    with path.open("rb") as file:
        header = unpack_header(file.read(HEADER_BYTES))
    if header is None or path.stat().st_size != HEADER_BYTES + header[1] * np.dtype(header[0]).itemsize:
        raise SkytrainError(
            f"{path} is not a whole llm.c file: its header does not fit its {path.stat().st_size:,} bytes"
        )
    return cut_documents(np.memmap(path, header[0], "r", HEADER_BYTES), eot)


def _read_megatron(path: Path, eot: int) -> Iterator[np.ndarray]:
    beside = path.with_suffix(".idx")
    if not beside.is_file():
        raise SkytrainError(f"{path} has no index {beside.name} next to it")
    body = beside.read_bytes()
    index = parse_megatron_index(body, str(beside))
    tokens = np.memmap(path, index.dtype, "r")
    if len(tokens) != index.lengths.sum():
        raise SkytrainError(f"{path} has {len(tokens):,} tokens, its index says {int(index.lengths.sum()):,}")
    ends = np.concatenate([[0], np.cumsum(index.lengths)])
    bounds = np.frombuffer(body, "<i8", index.documents + 1, len(body) - 8 * (index.documents + 1))
    for first, last in zip(bounds[:-1].tolist(), bounds[1:].tolist(), strict=True):
        ids = np.array(tokens[ends[first] : ends[last]])
        yield ids[:-1] if len(ids) and ids[-1] == eot else ids
