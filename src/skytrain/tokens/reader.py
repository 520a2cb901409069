"""Reads a split as windows of tokens from memory-mapped shards, which are verified before first use."""

from __future__ import annotations

import resource
from collections import OrderedDict
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from ..config import SkytrainError
from ..storage import Store
from .cache import Pin, ShardCache, Waiting, verify_once
from .foreign import copy_foreign
from .manifest import Manifest, find_manifest
from .shards import HEADER_BYTES, in_place_stamp, unpack_header

if TYPE_CHECKING:
    from .batch import Batch


@dataclass(frozen=True)
class TokenFile:
    """One shard and the local path of its tokens, which may not exist until the shard is supplied."""

    path: Path
    dtype: str
    offset: int  # bytes before the first token
    tokens: int
    bytes: int
    key: str  # key in the store
    sha256: str  # hash of the content; for another project's file, whose hash is unknown, a unique name
    kind: Literal["shard", "foreign", "tar"] = "shard"


Rows = Iterable[np.ndarray]
# The windows of a batch, which of its targets count, and which of its inputs begin a document: see Batch.
BatchArrays = tuple[np.ndarray, np.ndarray | None, np.ndarray | None]


def empty_arrays(rows: int, length: int, masked: bool, document_starts: bool) -> BatchArrays:
    """Allocate the arrays of a batch, which splits fill row by row."""
    return (
        np.empty((rows, length + 1), dtype=np.int64),
        np.ones((rows, length), dtype=bool) if masked else None,
        np.zeros((rows, length), dtype=bool) if document_starts else None,
    )


class TokenSplit:
    """The windows of one split.

    A window is `sequence_length + 1` tokens, inputs and shifted targets, cut from one shard with a stride of
    `sequence_length`. The remainder at the end of a shard, shorter than a window, is not read.
    """

    masked = False  # whether some targets of its windows may not count

    def __init__(
        self,
        manifest: Manifest,
        files: list[TokenFile],
        store: Store,
        cache: ShardCache,
        most_maps: int | None = None,
        vocab_limit: int | None = None,
    ) -> None:
        self.manifest = manifest
        self.files = files
        self.store = store
        self.cache = cache
        # A stream needs few maps at once, and a shard that stays mapped would keep its disk space after eviction.
        self.most_maps = most_maps or len(files)
        self.vocab_limit = vocab_limit  # checked in every batch from another project's files
        self._maps: OrderedDict[int, np.ndarray] = OrderedDict()
        self._bounds = lru_cache(maxsize=4)(self._window_bounds)
        self.pins: list[Pin] = []

    @classmethod
    def open(
        cls,
        store: Store,
        prefix: str,
        expect_tokenizer_hash: str | None = None,
        vocab_size: int | None = None,
        *,
        cache: ShardCache | None = None,
        supply: bool = True,
    ) -> TokenSplit:
        """Open the split under `prefix` with every shard local and verified; without `supply`, only on demand.

        A `file://` store is read in place; any other is copied to the cache first.
        `expect_tokenizer_hash` and `vocab_size` are the reader's; tokens of another vocabulary raise an error.
        """
        manifest = find_manifest(store, prefix)
        if manifest is None:
            raise SkytrainError(
                f"{store.url(prefix)} holds no prepared tokens: it has no manifest.json\n  run skytrain prepare with the same settings first"
            )
        _check_tokenizer(manifest, store.url(prefix), expect_tokenizer_hash, vocab_size)
        cache = cache or ShardCache()
        files = []
        for shard in manifest.shards:
            key = f"{prefix}/{shard.name}.bin"
            path = store.local_path(key) or cache.path(shard.sha256)
            files.append(
                TokenFile(
                    path=path,
                    dtype=manifest.dtype,
                    offset=HEADER_BYTES,
                    tokens=shard.tokens,
                    bytes=shard.bytes,
                    key=key,
                    sha256=shard.sha256,
                )
            )
        split = cls(manifest, files, store, cache)
        if supply:
            split.supply_all(range(len(files)))
        return split

    @property
    def in_place(self) -> bool:
        """Whether the store is a local folder, whose files are read without a copy."""
        return self.store.local_path("") is not None

    def supply_all(self, shards: Iterable[int]) -> None:
        """Make these shards local and verified, and pin them."""
        # Hashing and network waits both release the GIL.
        shards = list(shards)
        _allow_open_files(2 * len(shards))
        with ThreadPoolExecutor(4) as pool:
            self.pins += [
                pin for pin in pool.map(lambda shard: self.supply(shard, wait=True), shards) if pin is not None
            ]

    def supply(self, shard: int, wait: bool = False, cancelled: Callable[[], bool] = lambda: False) -> Pin | None:
        """Make one shard local and verified; the cache keeps it until the pin is released.

        Without `wait`, return None while another process is fetching it or uses the space.
        """
        file = self.files[shard]
        if file.kind == "tar" or not self.in_place:
            make = (
                None
                if file.kind == "shard"
                else lambda path: copy_foreign(
                    file.kind, self.store, file.key, path, self.cache, self.manifest.tokenizer.eot
                )
            )
            pin = self.cache.fetch(self.store, file.key, file.sha256, file.bytes, Waiting(wait, cancelled), make)
            if pin is not None:
                self._check_shape(file)
            return pin
        self._check_shape(file)
        stamp = in_place_stamp(self.cache.folder, file.path)
        if file.kind == "shard" and not verify_once(file.path, file.sha256, stamp):
            raise SkytrainError(
                f"{self.store.url(file.key)} was altered: its sha256 is not the manifest's {file.sha256[:12]}…\n  prepare the data again"
            )
        return Pin.of_nothing(file.path)

    def windows(self, sequence_length: int) -> int:
        return int(self._bounds(sequence_length)[-1])

    def shard_windows(self, sequence_length: int) -> np.ndarray:
        """Return the number of windows in each shard."""
        return np.diff(self._bounds(sequence_length))

    def shards_of(self, windows: np.ndarray, sequence_length: int) -> np.ndarray:
        """Return the shard of each of these windows."""
        return np.searchsorted(self._bounds(sequence_length), windows, side="right") - 1

    def leftover_tokens(self, sequence_length: int) -> int:
        """Return the number of tokens at the ends of shards that are in no window of this length."""
        counts = self.shard_windows(sequence_length)
        covered = counts * sequence_length + (counts > 0)
        return self.manifest.tokens - int(covered.sum())

    def batch(self, windows: np.ndarray, sequence_length: int, *, document_starts: bool = False) -> Batch:
        """Return these windows as a batch, with the places where documents begin if `document_starts`."""
        from .batch import batch_of  # imports torch, which preparing data does without

        return batch_of(*self.arrays(windows, sequence_length, document_starts=document_starts))

    def arrays(self, windows: np.ndarray, sequence_length: int, *, document_starts: bool = False) -> BatchArrays:
        """Return the arrays of `batch`."""
        made = empty_arrays(len(windows), sequence_length, self.masked, document_starts)
        self.fill(made, windows, sequence_length)
        return made

    def targets(self, windows: np.ndarray, sequence_length: int) -> np.ndarray:
        """Return the number of target tokens in each window."""
        return np.full(len(windows), sequence_length, dtype=np.int64)

    def fill(self, rows: tuple[Rows, Rows | None, Rows | None], windows: np.ndarray, sequence_length: int) -> None:
        """Write each window into its row of each array."""
        bounds, width = self._bounds(sequence_length), sequence_length + 1
        shards = np.searchsorted(bounds, windows, side="right") - 1
        starts = (windows - bounds[shards]) * sequence_length
        # Copying row by row beats one fancy index: rows are contiguous, and the copy casts to int64.
        mapped, limit = self._maps.get, self.vocab_limit
        for row, shard, start in zip(rows[0], shards.tolist(), starts.tolist(), strict=True):
            tokens = mapped(shard)
            row[:] = (self._map(shard) if tokens is None else tokens)[start : start + width]
            # Our own shards were checked when written, and their hash shows that they are unchanged.
            if limit is not None and not 0 <= row.min() <= row.max() < limit:
                self._refuse_tokens(row, shard)
        if rows[2] is not None:
            for row, document_starts in zip(rows[0], rows[2], strict=True):
                np.equal(row[:-1], self.manifest.tokenizer.eot, out=document_starts)

    def _window_bounds(self, sequence_length: int) -> np.ndarray:
        """Return the first window of each shard, followed by the total number of windows."""
        counts = [max(0, file.tokens - 1) // sequence_length for file in self.files]
        return np.concatenate([[0], np.cumsum(counts, dtype=np.int64)]).astype(np.int64)

    def _map(self, shard: int) -> np.ndarray:
        tokens = self._maps.get(shard)
        if tokens is None:
            file = self.files[shard]
            _allow_open_files(2 * self.most_maps)
            dtype = np.dtype(file.dtype).newbyteorder("<")
            # A plain array: slicing an np.memmap costs several microseconds each time.
            tokens = np.asarray(np.memmap(file.path, dtype=dtype, mode="r", offset=file.offset, shape=(file.tokens,)))
            self._maps[shard] = tokens
            if len(self._maps) > self.most_maps:
                self._maps.popitem(last=False)
        return tokens

    def _check_shape(self, file: TokenFile) -> None:
        """Check size and header first: they explain a problem better than a hash mismatch."""
        where = self.store.url(file.key)
        if not file.path.exists():
            raise SkytrainError(
                f"{where} is missing, though the manifest names it\n  prepare the data again, or copy the shard back"
            )
        size = file.path.stat().st_size
        if file.kind == "tar":
            return  # its tokens were counted when it was copied
        if size != file.bytes:
            raise SkytrainError(
                f"{where} has {size:,} bytes, the manifest says {file.bytes:,}: it is truncated or of another making\n  prepare the data again"
            )
        if file.kind == "foreign":
            return
        with file.path.open("rb") as opened:
            header = unpack_header(opened.read(HEADER_BYTES))
        if header != (file.dtype, file.tokens):
            held = "no shard header" if header is None else f"{header[1]:,} {header[0]} tokens"
            raise SkytrainError(
                f"{where} has {held}, the manifest says {file.tokens:,} {file.dtype} tokens\n  prepare the data again"
            )

    def _refuse_tokens(self, row: np.ndarray, shard: int) -> None:
        bad = row.max() if row.max() >= (self.vocab_limit or 0) else row.min()
        raise SkytrainError(
            f"{self.store.url(self.files[shard].key)} holds token id {bad}, outside the vocabulary of {self.vocab_limit}\n"
            "  choose the tokenizer that made it (tokenizer=NAME, model.vocab_size=N), and check loader.files.format and dtype"
        )

    @property
    def arguments(self) -> tuple[Any, ...]:
        """The constructor arguments, for pickling: file locations, never mapped memory."""
        return self.manifest, self.files, self.store, self.cache, self.most_maps, self.vocab_limit

    def __reduce__(self) -> tuple[Any, ...]:
        return TokenSplit, self.arguments


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


def _allow_open_files(count: int) -> None:
    """Raise the open file limit: each map and each pin uses a descriptor, and login shells allow only 1024."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = count + 512
    if soft != resource.RLIM_INFINITY and soft < wanted:
        if hard != resource.RLIM_INFINITY and hard < wanted:
            raise SkytrainError(
                f"this many shards need {wanted} open files, this machine allows {hard}\n  raise it (ulimit -Hn), or prepare larger shards (data.shard_tokens)"
            )
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
