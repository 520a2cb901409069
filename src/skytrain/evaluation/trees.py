"""Continuations that share a prefix as trees, and trees packed into rows of one length.

What a group of continuations has in common, such as the question of a multiple-choice item, is computed once. Arrays
are made for whole batches at a time: for a small model on a GPU, a loop over tokens in Python would take longer than
the model.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np

from .continuations import Continuation


@dataclass(frozen=True)
class TokenTable:
    """All continuations in arrays; the place of one is its number."""

    tokens: np.ndarray  # of all of them, one after another
    offsets_n: np.ndarray  # where each begins
    sizes_n: np.ndarray
    starts_n: np.ndarray  # of the scored part

    @classmethod
    def of(cls, continuations: Sequence[Continuation]) -> TokenTable:
        sizes = np.array([len(each.tokens) for each in continuations], np.int64)
        tokens = np.fromiter(chain.from_iterable(each.tokens for each in continuations), np.int64, int(sizes.sum()))
        starts = np.array([each.start for each in continuations], np.int64)
        return cls(tokens, np.cumsum(sizes) - sizes, sizes, starts)


@dataclass(frozen=True)
class Tree:
    """A trunk, which all its continuations share, and their own parts; `numbers` are their places in the table."""

    trunk: int  # tokens
    numbers: tuple[int, ...]
    length: int  # tokens that the model reads


@dataclass(frozen=True)
class PackedRows:
    """A batch of rows that hold trees. All arrays except the last three have the same shapes in each batch."""

    tokens_bt: np.ndarray
    trees_bt: np.ndarray
    branches_bt: np.ndarray
    places_bt: np.ndarray
    asked_n: np.ndarray  # position in the flattened rows of what predicts each target
    targets_n: np.ndarray
    numbers_n: np.ndarray  # the continuation that each target belongs to


def common_prefix(texts: Sequence[tuple[int, ...]]) -> int:
    """Return the number of tokens that all texts have in common at their beginning."""
    # What the first and the last text in lexical order share, all texts share.
    first = min(texts)
    last = max(texts)
    for place, (a, b) in enumerate(zip(first, last, strict=False)):
        if a != b:
            return place
    return min(len(first), len(last))


def grow_trees(group: Sequence[Continuation], first: int, longest: int) -> list[Tree]:
    """Return one tree for a group, or several that repeat the trunk where one would be longer than a row may be.

    `first` is the number of the group's first continuation.
    """
    inputs = [each.inputs for each in group]
    trunk = common_prefix(inputs) if len(group) > 1 else len(inputs[0])
    trees: list[Tree] = []
    held: list[int] = []
    length = trunk
    for number, read in enumerate(inputs, start=first):
        own = len(read) - trunk
        if held and length + own > longest:
            trees.append(Tree(trunk, tuple(held), length))
            held = []
            length = trunk
        held.append(number)
        length += own
    return [*trees, Tree(trunk, tuple(held), length)]


def fill_rows(trees: Sequence[Tree], length: int) -> list[list[Tree]]:
    """Fill rows of at most `length` tokens: the longest trees first, each into the row that it fills best."""
    by_space: dict[int, list[int]] = {}  # rows, by the room that is left in them
    spaces: list[int] = []  # the keys, sorted
    rows: list[list[Tree]] = []
    for tree in sorted(trees, key=lambda tree: -tree.length):
        at = bisect_left(spaces, tree.length)
        if at == len(spaces):
            row = len(rows)
            space = length
            rows.append([])
        else:
            space = spaces[at]
            row = by_space[space].pop()
            if not by_space[space]:
                del by_space[space], spaces[at]
        rows[row].append(tree)
        left = space - tree.length
        if left not in by_space:
            by_space[left] = []
            insort(spaces, left)
        by_space[left].append(row)
    return rows


def pack(table: TokenTable, rows: Sequence[Sequence[Tree]], length: int, count: int) -> PackedRows:
    """Return the arrays of `count` rows of `length` tokens; what is left of them is padding, in a separate tree."""
    tokens, trees, branches, places = (np.zeros(count * length, np.int64) for _ in range(4))
    trees[:] = -1
    placed = _place(table, rows, length)
    for parts in (placed.trunks, placed.branches):
        into, within = _ranges(parts.at, parts.size)
        tokens[into] = table.tokens[np.repeat(parts.source, parts.size) + within]
        places[into] = np.repeat(parts.place, parts.size) + within
        trees[into] = np.repeat(parts.tree, parts.size)
        branches[into] = np.repeat(parts.branch, parts.size)
    numbers = placed.numbers
    own = placed.branches
    scored = table.sizes_n[numbers] - table.starts_n[numbers]
    target, within = _ranges(table.offsets_n[numbers] + table.starts_n[numbers], scored)
    # A token is predicted where the one before it stands: in the trunk, or in the branch.
    before = np.repeat(table.starts_n[numbers] - 1, scored) + within
    trunk = np.repeat(own.place, scored)
    asked = np.where(
        before < trunk, np.repeat(placed.trunk_at, scored) + before, np.repeat(own.at, scored) + before - trunk
    )
    tokens_bt, trees_bt, branches_bt, places_bt = (
        each.reshape(count, length) for each in (tokens, trees, branches, places)
    )
    owners = np.repeat(numbers, scored)
    return PackedRows(
        tokens_bt=tokens_bt,
        trees_bt=trees_bt,
        branches_bt=branches_bt,
        places_bt=places_bt,
        asked_n=asked,
        targets_n=table.tokens[target],
        numbers_n=owners,
    )


@dataclass(frozen=True)
class PlacedParts:
    """Runs of tokens: where each goes in the flattened rows, how long it is, and what it is."""

    at: np.ndarray
    size: np.ndarray
    source: np.ndarray  # in the table
    place: np.ndarray  # of the first token in its text
    tree: np.ndarray  # within its row
    branch: np.ndarray  # 0 for a trunk


@dataclass(frozen=True)
class PlacedTrees:
    """The trunks and branches of a batch; the last two arrays go with the branches."""

    trunks: PlacedParts
    branches: PlacedParts
    numbers: np.ndarray
    trunk_at: np.ndarray


def _place(table: TokenTable, rows: Sequence[Sequence[Tree]], length: int) -> PlacedTrees:
    """Place each row's trees one after another, each trunk followed by its branches."""
    held = [(row, index, tree) for row, trees in enumerate(rows) for index, tree in enumerate(trees)]
    members = np.array([len(tree.numbers) for _, _, tree in held])
    numbers = np.fromiter(chain.from_iterable(tree.numbers for _, _, tree in held), np.int64, int(members.sum()))
    first = np.cumsum(members) - members  # of each tree, among the members
    trunk = np.array([tree.trunk for _, _, tree in held])
    index = np.array([index for _, index, _ in held])
    sizes = np.array([tree.length for _, _, tree in held])
    row = np.array([row for row, _, _ in held])
    ends = np.cumsum(sizes)
    # Trees of a row follow each other: subtract what all earlier rows hold.
    begins_row = np.concatenate([[True], row[1:] != row[:-1]])
    held_before = (ends - sizes)[begins_row][np.cumsum(begins_row) - 1]
    at = row * length + (ends - sizes) - held_before
    own = table.sizes_n[numbers] - 1 - np.repeat(trunk, members)
    earlier = np.cumsum(own) - own
    in_tree = earlier - np.repeat(earlier[first], members)  # the branches before it
    branch = np.arange(len(numbers)) - np.repeat(first, members) + 1
    trunk_at = np.repeat(at, members)
    trunk_of = np.repeat(trunk, members)
    zeros = np.zeros(len(held), np.int64)
    source = table.offsets_n[numbers]
    return PlacedTrees(
        PlacedParts(at=at, size=trunk, source=source[first], place=zeros, tree=index, branch=zeros),
        PlacedParts(
            at=trunk_at + trunk_of + in_tree,
            size=own,
            source=source + trunk_of,
            place=trunk_of,
            tree=np.repeat(index, members),
            branch=branch,
        ),
        numbers,
        trunk_at,
    )


def _ranges(starts: np.ndarray, sizes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the numbers of several ranges one after another, and the place of each within its range."""
    within = np.arange(int(sizes.sum())) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    return np.repeat(starts, sizes) + within, within
