"""The order of samples: a pure function of (seed, epoch, position), the same on every rank, worker and restart."""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass

import numpy as np

# Each half of the Feistel network is changed four times: fewer rounds leave neighbours visibly together.
ROUNDS = 8


@dataclass(frozen=True)
class Permutation:
    """A bijection of range(count) that is computed, never stored."""

    count: int
    keys: tuple[int, ...]

    def __call__(self, positions: np.ndarray) -> np.ndarray:
        """The images of `positions`, each in range(count)."""
        # A grid of rows x columns barely larger than `count`, so that almost no position has to walk.
        rows = math.isqrt(self.count - 1) + 1 if self.count > 1 else 1
        columns = -(-self.count // rows)
        images = _feistel(np.asarray(positions).astype(np.uint64), rows, columns, self.keys)
        outside = np.flatnonzero(images >= self.count)
        # Cycle walking: a cell of the grid that is no position is permuted again, until it lands on one.
        while len(outside):
            images[outside] = _feistel(images[outside], rows, columns, self.keys)
            outside = outside[images[outside] >= self.count]
        return images.astype(np.int64)


def window_order(seed: int, epoch: int, count: int) -> Permutation:
    """The order of `count` windows in one epoch, the same on every rank.

    A Feistel network, so that any position can be asked for without holding the whole permutation:
    a billion windows cost no memory, and a resumed run starts anywhere in constant time.
    """
    assert count > 0
    digest = hashlib.shake_256(f"window-order/{seed}/{epoch}".encode()).digest(8 * ROUNDS)
    keys = tuple(int.from_bytes(digest[8 * i : 8 * i + 8], "little") for i in range(ROUNDS))
    return Permutation(count, keys)


def windows_at(positions: np.ndarray, seed: int, count: int) -> np.ndarray:
    """The windows at global positions of a run that goes through `count` windows epoch after epoch."""
    positions = np.asarray(positions, dtype=np.int64)
    epochs = positions // count
    windows = np.empty_like(positions)
    for epoch in np.unique(epochs):
        here = epochs == epoch
        windows[here] = window_order(seed, int(epoch), count)(positions[here] - epoch * count)
    return windows


def _feistel(cells: np.ndarray, rows: int, columns: int, keys: tuple[int, ...]) -> np.ndarray:
    row, column = np.divmod(cells, np.uint64(columns))
    for i, key in enumerate(keys):
        if i % 2 == 0:
            row = (row + _mix(column ^ np.uint64(key))) % np.uint64(rows)
        else:
            column = (column + _mix(row ^ np.uint64(key))) % np.uint64(columns)
    return row * np.uint64(columns) + column


def _mix(x: np.ndarray) -> np.ndarray:
    """The finaliser of splitmix64; halved so that adding a row or a column cannot wrap, which would break the bijection."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return (x ^ (x >> np.uint64(31))) >> np.uint64(1)
