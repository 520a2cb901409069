"""Loss masks: `<shard>.mask` has one bit per token of the shard, set where the loss is computed on the token.

Bits are in little-endian order: token i is bit i % 8 of byte i // 8. The `.bin` of a shard is the same with and without
a mask, so other readers of the format still read it.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from ..config import SkytrainError
from .cache import Pin, Waiting, verify_once
from .shards import in_place_stamp, mask_bytes

if TYPE_CHECKING:
    from .reader import TokenSplit


def pack_mask(trained: np.ndarray) -> bytes:
    return np.packbits(trained.astype(bool), bitorder="little").tobytes()


class LossMasks:
    """The masks of a split. They are memory-mapped when first used, so a copy for a data loader worker is small."""

    def __init__(self, paths: list[Path], tokens: list[int]) -> None:
        self._paths = paths
        self._tokens = tokens
        self._maps: dict[int, np.ndarray] = {}

    @classmethod
    def of(cls, split: TokenSplit) -> tuple[LossMasks, list[Pin]]:
        """Make the masks of all shards local and verified. They are a sixteenth of the tokens' size or less."""
        pins = [_supply(split, number) for number in range(len(split.files))]
        return cls([pin.path for pin in pins], [file.tokens for file in split.files]), pins

    def trained(self, shard: int, start: int, length: int) -> np.ndarray:
        """Return for each of `length` tokens from `start` whether the loss is computed on it."""
        first = start // 8
        bits = np.unpackbits(self._map(shard)[first : -(-(start + length) // 8)], bitorder="little")
        return bits[start - 8 * first :][:length].astype(bool)

    def count(self, shard: int, starts: np.ndarray, ends: np.ndarray) -> np.ndarray:
        """Return the number of trained tokens in each span [start, end). Spans are in order and do not overlap."""
        bits = np.append(self.trained(shard, 0, self._tokens[shard]), False)
        edges = np.stack([starts, ends], axis=1).ravel()
        # reduceat sums from each edge to the next: every other sum is a span. An empty one gives its first element.
        return np.where(ends > starts, np.add.reduceat(bits, edges, dtype=np.int64)[::2], 0)

    def _map(self, shard: int) -> np.ndarray:
        if shard not in self._maps:
            self._maps[shard] = np.asarray(np.memmap(self._paths[shard], np.uint8, "r"))
        return self._maps[shard]

    def __getstate__(self) -> dict[str, object]:
        return {**self.__dict__, "_maps": {}}


def _supply(split: TokenSplit, number: int) -> Pin:
    shard = split.manifest.shards[number]
    file = split.files[number]
    store = split.store
    key = file.key.removesuffix(".bin") + ".mask"
    sha256 = shard.mask_sha256
    assert sha256 is not None
    path = store.local_path(key)
    if path is None:
        pin = split.cache.fetch(store, key, sha256, mask_bytes(shard.tokens), Waiting())
        assert pin is not None
        return pin
    if not path.exists():
        raise SkytrainError(
            f"{store.url(key)} is missing, though the manifest names it\n  prepare the data again, or copy the mask back"
        )
    stamp = in_place_stamp(split.cache.folder, path)
    if path.stat().st_size != mask_bytes(shard.tokens) or not verify_once(path, sha256, stamp):
        raise SkytrainError(
            f"{store.url(key)} was altered: its sha256 is not the manifest's {sha256[:12]}…\n  prepare the data again"
        )
    return Pin.of_nothing(path)
