"""Best-fit packing of whole documents into windows."""

from __future__ import annotations

import bisect
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import repeat
from typing import Any

import numpy as np

from ..config import SkytrainError
from ..storage import read_numbers
from .masks import LossMasks
from .reader import Rows, TokenSplit


@dataclass(frozen=True)
class Packing:
    """The windows of one shard: window w holds pieces [first[w], first[w + 1]), each a span of the shard's tokens."""

    first: np.ndarray
    starts: np.ndarray
    lengths: np.ndarray
    begins: np.ndarray  # whether the piece is the start of its document
    trained: np.ndarray | None = None  # with a loss mask: the number of targets in each piece

    @property
    def windows(self) -> int:
        return len(self.first) - 1

    @cached_property
    def tokens(self) -> np.ndarray:
        """The number of tokens in each window, without padding."""
        return np.add.reduceat(self.lengths, self.first[:-1])

    @cached_property
    def continued(self) -> np.ndarray:
        """The number of pieces in each window, except the first, that continue a document from another window.

        The first token of such a piece is not predicted.
        """
        return np.add.reduceat(~self.begins, self.first[:-1], dtype=np.int64) - ~self.begins[self.first[:-1]]


class PackedSplit(TokenSplit):
    """A split whose windows hold as many whole documents as fit; the rest of a window is padding.

    Only a document longer than a window is split. Consecutive pieces overlap by one token, so every token except the
    first of each document is predicted exactly once. With a loss mask, only tokens that it names are predicted.
    """

    masked = True

    def __init__(self, *arguments: Any, ends: list[np.ndarray], masks: LossMasks | None = None) -> None:
        super().__init__(*arguments)
        self.ends = ends  # for each shard, the end offset of each document, in tokens
        self.masks = masks
        self._packings: dict[int, list[Packing]] = {}

    @classmethod
    def of(cls, split: TokenSplit) -> PackedSplit:
        ends = [_document_ends(split, number) for number in range(len(split.files))]
        masks, pins = LossMasks.of(split) if split.manifest.masked else (None, [])
        packed = cls(*split.arguments, ends=ends, masks=masks)
        packed.pins = split.pins + pins
        return packed

    def packings(self, sequence_length: int) -> list[Packing]:
        if sequence_length not in self._packings:
            packings = [pack_documents(ends, sequence_length) for ends in self.ends]
            if self.masks is not None:
                packings = [self._counted(self.masks, shard, packing) for shard, packing in enumerate(packings)]
            self._packings[sequence_length] = packings
        return self._packings[sequence_length]

    @staticmethod
    def _counted(masks: LossMasks, shard: int, packing: Packing) -> Packing:
        # The first token of a piece is not predicted; without it, pieces do not overlap.
        order = np.argsort(packing.starts)
        starts = packing.starts[order]
        lengths = packing.lengths[order]
        trained = np.empty(len(order), dtype=np.int64)
        trained[order] = masks.count(shard, starts + 1, starts + lengths)
        return replace(packing, trained=trained)

    def _window_bounds(self, sequence_length: int) -> np.ndarray:
        counts = [packing.windows for packing in self.packings(sequence_length)]
        return np.concatenate([[0], np.cumsum(counts, dtype=np.int64)]).astype(np.int64)

    def leftover_tokens(self, sequence_length: int) -> int:
        return 0

    def padding_fraction(self, sequence_length: int) -> float:
        """Return the fraction of all window positions that is padding."""
        packings = self.packings(sequence_length)
        held = sum(int(packing.lengths.sum()) for packing in packings)
        return 1 - held / (sum(packing.windows for packing in packings) * (sequence_length + 1))

    def targets(self, windows: np.ndarray, sequence_length: int) -> np.ndarray:
        bounds = self._bounds(sequence_length)
        shards = np.searchsorted(bounds, windows, side="right") - 1
        counts = np.empty(len(windows), dtype=np.int64)
        for shard in np.unique(shards).tolist():
            packing = self.packings(sequence_length)[shard]
            here = shards == shard
            inside = windows[here] - bounds[shard]
            if packing.trained is not None:
                counts[here] = np.add.reduceat(packing.trained, packing.first[:-1])[inside]
                continue
            held = packing.tokens[inside]
            # If there is room, the end of the last document is predicted too; a window's first token never is.
            counts[here] = held + (held <= sequence_length) - 1 - packing.continued[inside]
        return counts

    def fill(self, rows: tuple[Rows, Rows | None, Rows | None], windows: np.ndarray, sequence_length: int) -> None:
        """Write the pieces of each window into its row, and padding after them.

        The first token of a piece that continues a document from another window is read but not predicted. With a
        loss mask, so is the first token of every piece, and what the mask leaves out.
        """
        bounds, eot = self._bounds(sequence_length), self.manifest.tokenizer.eot
        shards = np.searchsorted(bounds, windows, side="right") - 1
        inside = windows - bounds[shards]
        assert rows[1] is not None
        each = zip(
            rows[0],
            rows[1],
            repeat(None) if rows[2] is None else rows[2],
            shards.tolist(),
            inside.tolist(),
            strict=False,
        )
        for row, mask, starts, shard, window in each:  # mask[i] is about row[i + 1], which is predicted there
            begun: list[int] = []  # where pieces begin that do not begin with the end of text
            packing, tokens, end = self.packings(sequence_length)[shard], self._map(shard), 0
            for piece in range(packing.first[window], packing.first[window + 1]):
                start, length = int(packing.starts[piece]), int(packing.lengths[piece])
                row[end : end + length] = tokens[start : start + length]
                if self.masks is not None:
                    begun.append(end)
                    mask[end : end + length - 1] = self.masks.trained(shard, start, length)[1:]
                elif end and not packing.begins[piece]:
                    begun.append(end)
                end += length
            row[end:] = eot
            predicts_end = end < len(row) and self.masks is None  # the model learns to predict the last document's end
            mask[max(0, end - 1 + predicts_end) :] = False
            for position in begun:
                if position:
                    mask[position - 1] = False
            if starts is not None:
                if self.masks is None:
                    np.equal(row[:-1], eot, out=starts)
                starts[end:] = True
                starts[[position for position in begun if position < len(starts)]] = True

    def __reduce__(self) -> tuple[Any, ...]:
        return partial(PackedSplit, ends=self.ends, masks=self.masks), self.arguments


def _document_ends(split: TokenSplit, number: int) -> np.ndarray:
    file = split.files[number]
    shard = split.manifest.shards[number]
    if file.kind != "shard":
        raise SkytrainError(
            f"loader.packing=documents needs to know where documents end, and {split.store.url(file.key)} does not say\n  set loader.packing=windows"
        )
    key = file.key.removesuffix(".bin") + ".idx"
    return read_numbers(split.store, key, "<u8", shard.index_sha256).astype(np.int64)


def pack_documents(ends: np.ndarray, sequence_length: int) -> Packing:
    """Pack documents by best-fit decreasing: longest piece first, each into the fullest window with room for it."""
    starts, lengths, begins = _pieces(ends, sequence_length)
    window_of = np.empty(len(lengths), dtype=np.int64)
    order = np.argsort(-lengths, kind="stable")
    distinct, first = np.unique(-lengths[order], return_index=True)
    spaces: list[int] = []  # sorted; `open_windows` lists the windows with each amount of room
    open_windows: dict[int, list[int]] = {}
    count = 0
    capacity = sequence_length + 1
    for length, group in zip((-distinct).tolist(), np.split(order, first[1:]), strict=True):
        done = 0
        while done < len(group):
            at = bisect.bisect_left(spaces, length)
            space = spaces[at] if at < len(spaces) else capacity
            each = space // length  # a window that took one piece stays the best fit until it is full
            wanted = -(-(len(group) - done) // each)
            if at < len(spaces):
                taken = open_windows[space][-wanted:]
                del open_windows[space][-wanted:]
                if not open_windows[space]:
                    del open_windows[space], spaces[at]
            else:
                taken = list(range(count, count + wanted))
                count += wanted
            for window in taken:
                pieces = group[done : done + each]
                window_of[pieces] = window
                done += len(pieces)
                room = space - len(pieces) * length
                if room:
                    if room not in open_windows:
                        bisect.insort(spaces, room)
                        open_windows[room] = []
                    open_windows[room].append(window)
    by_window = np.argsort(window_of, kind="stable")
    bounds = np.searchsorted(window_of[by_window], np.arange(count + 1))
    return Packing(first=bounds, starts=starts[by_window], lengths=lengths[by_window], begins=begins[by_window])


def _pieces(ends: np.ndarray, sequence_length: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Split documents into pieces of at most one window; consecutive pieces overlap by one token."""
    document_starts = np.concatenate([[0], ends[:-1]]).astype(np.int64)
    counts = np.maximum(1, -(-(ends - document_starts - 1) // sequence_length))
    document = np.repeat(np.arange(len(ends)), counts)
    number = np.arange(len(document)) - np.repeat(np.cumsum(counts) - counts, counts)
    starts = document_starts[document] + number * sequence_length
    lengths = np.minimum(ends[document] - starts, sequence_length + 1)
    return starts, lengths, number == 0
