"""All training data of a run: one split or a mixture of several, divided into windows and ordered."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import numpy as np

from ..config import SkytrainError, format_bytes, plural
from .batch import Batch, batch_of
from .cache import Pin
from .mixture import Mixture, Phase
from .order import BlockOrder, GlobalOrder, SampleOrder
from .packing import PackedSplit
from .reader import TokenSplit, empty_arrays

Shuffle = Literal["global", "blocks"]


class Blend:
    """The windows of one or more splits, and the window at each position of the run.

    Windows and shards are numbered consecutively across sources, one source after the other.
    """

    def __init__(
        self,
        sources: Mapping[str, TokenSplit],
        sequence_length: int,
        seed: int,
        *,
        shuffle: Shuffle = "global",
        block_shards: int = 8,
        phases: Sequence[Phase] = (),
    ) -> None:
        self.names = tuple(sources)
        self.splits = tuple(sources.values())
        self.sequence_length = sequence_length
        self.shuffle = shuffle
        self.block_shards = block_shards
        counts = [
            _count_windows(name, split, sequence_length, alone=len(sources) == 1) for name, split in sources.items()
        ]
        self.first_window = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
        self.first_shard = np.concatenate([[0], np.cumsum([len(split.files) for split in self.splits])]).astype(
            np.int64
        )
        self.orders = [
            _order(split, seed if len(sources) == 1 else f"{seed}/{name}", sequence_length, shuffle, block_shards)
            for name, split in sources.items()
        ]
        self.mixture = Mixture(self.names, phases) if len(sources) > 1 else None
        self.masked = any(split.masked for split in self.splits)
        if shuffle == "blocks":
            for split in self.splits:
                split.most_maps = 2 * block_shards + 2  # a batch may span two blocks, and workers lag a little

    @property
    def windows(self) -> int:
        return int(self.first_window[-1])

    @property
    def tokens(self) -> int:
        return sum(split.manifest.tokens for split in self.splits)

    def summary(self) -> str:
        """Describe the number of windows, and the leftover tokens or padding."""
        packed = [split for split in self.splits if isinstance(split, PackedSplit)]
        if packed:
            rest = ", ".join(f"{split.padding_fraction(self.sequence_length):.2%}" for split in packed) + " padding"
        else:
            leftover = sum(split.leftover_tokens(self.sequence_length) for split in self.splits)
            rest = f"{plural(leftover, 'token')} left over at the ends of shards"
        return f"{plural(self.windows, 'window')} ({rest})"

    def at(self, positions: np.ndarray) -> np.ndarray:
        """Return the windows at these positions of the run."""
        if self.mixture is None:
            return self.orders[0].at(positions)
        sources, indices = self.mixture.at(positions)
        windows = np.empty_like(indices)
        for source in np.unique(sources).tolist():
            here = sources == source
            windows[here] = self.first_window[source] + self.orders[source].at(indices[here])
        return windows

    def epochs(self, position: int) -> dict[str, float]:
        """Return the number of epochs of each source completed before this position."""
        given = {self.names[0]: position} if self.mixture is None else self.mixture.counts(position)
        return {name: given[name] / order.windows for name, order in zip(self.names, self.orders, strict=True)}

    def batch(self, windows: np.ndarray, *, document_starts: bool = False) -> Batch:
        """Return these windows as a batch, with the places where documents begin if `document_starts`."""
        length = self.sequence_length
        if len(self.splits) == 1:
            return batch_of(*self.splits[0].arrays(windows, length, document_starts=document_starts))
        made = empty_arrays(len(windows), length, self.masked, document_starts)
        tokens, mask, starts = made
        sources = np.searchsorted(self.first_window, windows, side="right") - 1
        for source in set(sources.tolist()):
            here = (sources == source).nonzero()[0]
            at = here.tolist()
            rows = (
                [tokens[row] for row in at],
                None if mask is None else [mask[row] for row in at],
                None if starts is None else [starts[row] for row in at],
            )
            self.splits[source].fill(rows, windows[here] - self.first_window[source], length)
        return batch_of(*made)

    def targets(self, positions: np.ndarray) -> int | None:
        """Return the number of target tokens in the windows at these positions.

        None means all tokens but the first of each window.
        """
        if not any(isinstance(split, PackedSplit) for split in self.splits):
            return None
        windows = self.at(positions)
        sources = np.searchsorted(self.first_window, windows, side="right") - 1
        inside = windows - self.first_window[sources]
        return sum(
            int(split.targets(inside[sources == source], self.sequence_length).sum())
            for source, split in enumerate(self.splits)
        )

    def shards_of(self, windows: np.ndarray) -> np.ndarray:
        sources = np.searchsorted(self.first_window, windows, side="right") - 1
        shards = np.empty_like(windows)
        for source in np.unique(sources).tolist():
            here = sources == source
            own_shards = self.splits[source].shards_of(windows[here] - self.first_window[source], self.sequence_length)
            shards[here] = self.first_shard[source] + own_shards
        return shards

    def shard_bytes(self) -> np.ndarray:
        return np.array([file.bytes for split in self.splits for file in split.files], dtype=np.int64)

    def identity(self) -> dict[str, Any]:
        """Return the settings that define the order: a saved position is valid only if they are unchanged."""
        phases = [] if self.mixture is None else [[phase.start, *phase.weights] for phase in self.mixture.phases]
        order = f"blocks of {self.block_shards}" if self.shuffle == "blocks" else "global"
        return {
            "sources": {name: source.windows for name, source in zip(self.names, self.orders, strict=True)},
            "order": order,
            "mixture": phases,
        }

    def __getstate__(self) -> dict[str, Any]:
        # A data loader worker reads the windows that it is given and does not need the order.
        return {**self.__dict__, "orders": [], "mixture": None}

    def check_cache(self) -> None:
        """Raise if the cache cannot hold two blocks of every source.

        The next block must be fetched while the current one is read.
        """
        limit = self.splits[0].cache.limit_bytes
        if self.shuffle == "global" or limit is None:
            return
        needed = sum(
            sum(sorted((file.bytes for file in split.files), reverse=True)[: 2 * self.block_shards])
            for split in self.splits
        )
        if needed > limit:
            raise SkytrainError(
                f"two blocks of {self.block_shards} shards take {format_bytes(needed)}, and the cache may hold {format_bytes(limit)}\n"
                "  set a larger loader.cache_limit, a smaller loader.block_shards, or prepare smaller shards (data.shard_tokens)"
            )

    def supply(self, shard: int, cancelled: Callable[[], bool]) -> Pin | None:
        """Make a shard local and verified; return None while another process is fetching it or uses the space."""
        source = int(np.searchsorted(self.first_shard, shard, side="right")) - 1
        return self.splits[source].supply(shard - int(self.first_shard[source]), cancelled=cancelled)


def _order(
    split: TokenSplit, seed: int | str, sequence_length: int, shuffle: Shuffle, block_shards: int
) -> SampleOrder:
    if shuffle == "blocks":
        return BlockOrder(seed, split.shard_windows(sequence_length).tolist(), block_shards)
    return GlobalOrder(seed, split.windows(sequence_length))


def _count_windows(name: str, split: TokenSplit, sequence_length: int, alone: bool) -> int:
    if split.manifest.masked and not isinstance(split, PackedSplit):
        raise SkytrainError(
            f"{split.store.url(split.files[0].key)} has a loss mask, which loader.packing=windows does not read\n"
            "  set loader.packing=documents"
        )
    windows = split.windows(sequence_length)
    if not windows:
        what = f"the {split.manifest.split} split" if alone else f"source {name!r} of the mixture"
        raise SkytrainError(
            f"{what} has {split.manifest.tokens:,} tokens, too few for one sequence of {sequence_length}\n"
            "  prepare more data, or choose a shorter trainer.sequence_length"
        )
    return windows
