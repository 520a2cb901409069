"""A split as windows of tokens: memory-mapped shards, checked before first use, cut when read."""

from __future__ import annotations

import resource
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from skytrain.config import SkytrainError
from skytrain.storage import Store

from .manifest import Manifest, Shard, find_manifest
from .shards import HEADER_BYTES, sha256_of_file, unpack_header

DEFAULT_CACHE = Path.home() / ".cache" / "skytrain" / "tokens"


@dataclass(frozen=True)
class TokenFile:
    """Where the tokens of one shard lie on this machine."""

    path: Path
    dtype: str
    offset: int  # bytes before the first token
    tokens: int


class TokenSplit:
    """The windows of one split.

    A window is `sequence_length + 1` tokens, inputs and shifted targets, cut from one shard with a stride of
    `sequence_length`; what is left at the end of a shard is shorter than a window and is not read.
    """

    def __init__(self, manifest: Manifest, files: list[TokenFile]) -> None:
        self.manifest, self.files = manifest, files
        self._maps: list[np.ndarray] | None = None
        self._bounds = lru_cache(maxsize=4)(self._window_bounds)

    @classmethod
    def open(
        cls,
        store: Store,
        prefix: str,
        cache_dir: Path | None = None,
        expect_tokenizer_hash: str | None = None,
        vocab_size: int | None = None,
    ) -> TokenSplit:
        """The split under `prefix`, every shard local and verified.

        A `file://` store is read in place; any other is copied to `cache_dir` first, under the hash of its content.
        `expect_tokenizer_hash` and `vocab_size` are the reader's own: tokens of another vocabulary are refused.
        """
        manifest = find_manifest(store, prefix)
        if manifest is None:
            raise SkytrainError(
                f"{store.url(prefix)} holds no prepared tokens: it has no manifest.json\n  run skytrain prepare with the same settings first"
            )
        _check_tokenizer(manifest, store.url(prefix), expect_tokenizer_hash, vocab_size)
        cache_dir = cache_dir or DEFAULT_CACHE
        files = [
            _local_file(store, f"{prefix}/{shard.name}.bin", shard, manifest.dtype, cache_dir)
            for shard in manifest.shards
        ]
        return cls(manifest, files)

    def windows(self, sequence_length: int) -> int:
        return int(self._bounds(sequence_length)[-1])

    def leftover_tokens(self, sequence_length: int) -> int:
        """Tokens at the ends of shards that no window of this length holds."""
        counts = np.diff(self._bounds(sequence_length))
        covered = counts * sequence_length + (counts > 0)
        return self.manifest.tokens - int(covered.sum())

    def batch(self, windows: np.ndarray, sequence_length: int) -> np.ndarray:
        """The tokens of these windows, int64 of shape (len(windows), sequence_length + 1)."""
        bounds, maps = self._bounds(sequence_length), self._open_maps()
        width = sequence_length + 1
        shards = np.searchsorted(bounds, windows, side="right") - 1
        starts = (windows - bounds[shards]) * sequence_length
        batch = np.empty((len(windows), width), dtype=np.int64)
        # A copy a row beats one fancy index: rows are contiguous, and the cast to int64 happens on the way.
        for row, shard, start in zip(batch, shards.tolist(), starts.tolist(), strict=True):
            row[:] = maps[shard][start : start + width]
        return batch

    def _window_bounds(self, sequence_length: int) -> np.ndarray:
        """The first window of each shard, and after the last one the number of windows."""
        counts = [max(0, file.tokens - 1) // sequence_length for file in self.files]
        return np.concatenate([[0], np.cumsum(counts, dtype=np.int64)]).astype(np.int64)

    def _open_maps(self) -> list[np.ndarray]:
        if self._maps is None:
            _allow_open_files(len(self.files))
            # As plain arrays: slicing a np.memmap costs several microseconds a time.
            self._maps = [
                np.asarray(
                    np.memmap(
                        file.path,
                        dtype=np.dtype(file.dtype).newbyteorder("<"),
                        mode="r",
                        offset=file.offset,
                        shape=(file.tokens,),
                    )
                )
                for file in self.files
            ]
        return self._maps

    def __reduce__(self) -> tuple[Any, ...]:
        # To a worker process goes where the files are, never what is mapped.
        return TokenSplit, (self.manifest, self.files)


def _check_tokenizer(manifest: Manifest, where: str, expected_hash: str | None, vocab_size: int | None) -> None:
    made_with = manifest.tokenizer
    if expected_hash is not None and made_with.hash != expected_hash:
        raise SkytrainError(
            f"{where} was made with tokenizer {made_with.name} ({made_with.hash[:12]}), not with this run's ({expected_hash[:12]})\n"
            "  choose the same tokenizer, or prepare the data again with this one"
        )
    if vocab_size is not None and made_with.vocab_size > vocab_size:
        raise SkytrainError(
            f"{where} holds ids of {made_with.vocab_size} tokens (tokenizer {made_with.name}), more than the model's vocabulary of {vocab_size}\n"
            f"  set model.vocab_size={made_with.vocab_size}, or choose data made with a smaller tokenizer"
        )


def _local_file(store: Store, key: str, shard: Shard, dtype: str, cache_dir: Path) -> TokenFile:
    path = store.local_path(key)
    if path is not None:
        _verify(path, store.url(key), shard, dtype)
    else:
        path = cache_dir / f"{shard.sha256}.bin"
        if not path.exists():
            cache_dir.mkdir(parents=True, exist_ok=True)
            store.download(key, path, sha256=shard.sha256)
        _verify(path, store.url(key), shard, dtype)
    return TokenFile(path, dtype, HEADER_BYTES, shard.tokens)


def _verify(path: Path, where: str, shard: Shard, dtype: str) -> None:
    """Size and header first: they name the trouble better than a hash that does not match."""
    if not path.exists():
        raise SkytrainError(
            f"{where} is missing, though the manifest names it\n  prepare the data again, or copy the shard back"
        )
    size = path.stat().st_size
    if size != shard.bytes:
        raise SkytrainError(
            f"{where} has {size:,} bytes, the manifest says {shard.bytes:,}: it is truncated or of another making\n  prepare the data again"
        )
    with path.open("rb") as file:
        header = unpack_header(file.read(HEADER_BYTES))
    if header != (dtype, shard.tokens):
        found = "no shard header" if header is None else f"{header[1]:,} {header[0]} tokens"
        raise SkytrainError(
            f"{where} has {found}, the manifest says {shard.tokens:,} {dtype} tokens\n  prepare the data again"
        )
    found_hash = sha256_of_file(path)
    if found_hash != shard.sha256:
        raise SkytrainError(
            f"{where} was altered: its sha256 is {found_hash[:12]}…, the manifest says {shard.sha256[:12]}…\n  prepare the data again"
        )


def _allow_open_files(count: int) -> None:
    """Python keeps a descriptor open for each map, and a login shell allows 1024."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = count + 512
    if soft != resource.RLIM_INFINITY and soft < wanted:
        if hard != resource.RLIM_INFINITY and hard < wanted:
            raise SkytrainError(
                f"{count} shards need {wanted} open files, this machine allows {hard}\n  raise it (ulimit -Hn), or prepare larger shards (data.shard_tokens)"
            )
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
