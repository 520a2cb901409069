"""The sample order: a pure function of (seed, epoch, position), identical on all ranks and workers and on resume."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Protocol

import numpy as np

# Each half of the Feistel network is updated four times: with fewer rounds, neighbours visibly stay together.
ROUNDS = 8


@dataclass(frozen=True)
class Permutation:
    """A permutation of range(count) that is computed on demand, never stored."""

    count: int
    keys: tuple[int, ...]

    def __call__(self, positions: np.ndarray) -> np.ndarray:
        """Return the images of `positions`, each in range(count)."""
        # The grid of rows x columns is barely larger than `count`, so almost no position needs cycle walking.
        rows = math.isqrt(self.count - 1) + 1 if self.count > 1 else 1
        columns = -(-self.count // rows)
        images = _feistel(np.asarray(positions).astype(np.uint64), rows, columns, self.keys)
        outside = np.flatnonzero(images >= self.count)
        # Cycle walking: a result outside range(count) is permuted again until it falls inside.
        while len(outside):
            images[outside] = _feistel(images[outside], rows, columns, self.keys)
            outside = outside[images[outside] >= self.count]
        return images.astype(np.int64)


def window_order(seed: int | str, epoch: int, count: int) -> Permutation:
    """Return the order of `count` windows in one epoch, the same on every rank.

    A Feistel network computes any position without storing the permutation: a billion windows cost no memory,
    and a resumed run starts anywhere in constant time.
    """
    return permutation(f"window-order/{seed}/{epoch}", count)


def permutation(label: str, count: int) -> Permutation:
    """Return the permutation of range(count) for a label; different labels give unrelated permutations."""
    assert count > 0
    digest = hashlib.shake_256(label.encode()).digest(8 * ROUNDS)
    keys = tuple(int.from_bytes(digest[8 * i : 8 * i + 8], "little") for i in range(ROUNDS))
    return Permutation(count, keys)


def windows_at(positions: np.ndarray, seed: int | str, count: int) -> np.ndarray:
    """Return the windows at global positions of a run that repeats `count` windows for any number of epochs."""
    positions = np.asarray(positions, dtype=np.int64)
    epochs = positions // count
    windows = np.empty_like(positions)
    for epoch in np.unique(epochs):
        here = epochs == epoch
        windows[here] = window_order(seed, int(epoch), count)(positions[here] - epoch * count)
    return windows


class SampleOrder(Protocol):
    """A map from each position of a run of any length to a window."""

    @property
    def windows(self) -> int: ...  # number of windows in one epoch

    def at(self, positions: np.ndarray) -> np.ndarray: ...


@dataclass(frozen=True)
class GlobalOrder:
    """A shuffle of all windows of the split together: the best one, but the whole split must be local."""

    seed: int | str
    windows: int

    def at(self, positions: np.ndarray) -> np.ndarray:
        return windows_at(positions, self.seed, self.windows)


class BlockOrder:
    """A shuffle of the shards, then of the windows within blocks of a few shards, so a cache of two blocks is enough.

    Blocks start at one shard per epoch and double up to `block_shards`: the first batch waits for a single
    download, and each block takes long enough to read that the next one can be downloaded meanwhile.
    """

    def __init__(self, seed: int | str, shard_windows: Sequence[int], block_shards: int) -> None:
        self.seed = seed
        self.block_shards = block_shards
        self.windows = sum(shard_windows)
        self._first_window = np.concatenate([[0], np.cumsum(shard_windows)])[:-1].astype(np.int64)
        self._shard_windows = np.asarray(shard_windows, dtype=np.int64)
        self._shards = np.flatnonzero(self._shard_windows)  # shards too short for one window are skipped
        self._blocks = block_bounds(len(self._shards), block_shards)
        self._layout = lru_cache(maxsize=2)(self._epoch_layout)

    def at(self, positions: np.ndarray) -> np.ndarray:
        positions = np.asarray(positions, dtype=np.int64)
        epochs = positions // self.windows
        windows = np.empty_like(positions)
        for epoch in np.unique(epochs).tolist():
            here = epochs == epoch
            windows[here] = self._at_epoch(epoch, positions[here] - epoch * self.windows)
        return windows

    def _at_epoch(self, epoch: int, places: np.ndarray) -> np.ndarray:
        shards, shard_starts, block_starts = self._layout(epoch)
        blocks = np.searchsorted(block_starts, places, side="right") - 1
        shuffled = np.empty_like(places)
        for block in np.unique(blocks).tolist():
            here = blocks == block
            start = int(block_starts[block])
            end = int(block_starts[block + 1])
            order = permutation(f"block-order/{self.seed}/{epoch}/{block}", end - start)
            shuffled[here] = start + order(places[here] - start)
        at = np.searchsorted(shard_starts, shuffled, side="right") - 1
        return self._first_window[shards[at]] + shuffled - shard_starts[at]

    def _epoch_layout(self, epoch: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return the shards in this epoch's order, the first position of each shard, and that of each block."""
        order = permutation(f"shard-order/{self.seed}/{epoch}", len(self._shards))
        shards = self._shards[order(np.arange(len(self._shards)))]
        starts = np.concatenate([[0], np.cumsum(self._shard_windows[shards])]).astype(np.int64)
        return shards, starts, starts[self._blocks]


def block_bounds(shards: int, block_shards: int) -> np.ndarray:
    """Return the starts of blocks of 1, 2, 4, ... up to `block_shards` shards, followed by the end of the last."""
    bounds = [0]
    size = 1
    while bounds[-1] < shards:
        bounds.append(min(shards, bounds[-1] + min(size, block_shards)))
        size *= 2
    return np.array(bounds)


def _feistel(cells: np.ndarray, rows: int, columns: int, keys: tuple[int, ...]) -> np.ndarray:
    row, column = np.divmod(cells, np.uint64(columns))
    for i, key in enumerate(keys):
        if i % 2 == 0:
            row = (row + _mix(column ^ np.uint64(key))) % np.uint64(rows)
        else:
            column = (column + _mix(row ^ np.uint64(key))) % np.uint64(columns)
    return row * np.uint64(columns) + column


def _mix(x: np.ndarray) -> np.ndarray:
    """Apply the finalizer of splitmix64, shifted right by one bit.

    The shift keeps the sum with a row or column from overflowing, which would break the bijection.
    """
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return (x ^ (x >> np.uint64(31))) >> np.uint64(1)
