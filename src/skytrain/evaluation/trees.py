"""Continuations that share a prefix as trees, and trees packed into rows of one length.

What a group of continuations has in common, such as the question of a multiple-choice item, is computed once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from .continuations import Continuation


@dataclass(frozen=True)
class Tree:
    """A trunk and the continuations that follow it; `numbers` are their places in the caller's list."""

    trunk: int  # tokens that all of them share
    members: tuple[Continuation, ...]
    numbers: tuple[int, ...]

    @property
    def length(self) -> int:
        return self.trunk + sum(len(each.inputs) - self.trunk for each in self.members)


@dataclass(frozen=True)
class PackedRows:
    """A batch of rows that hold trees. All arrays are of the same shapes in each batch but for the last three."""

    tokens_bt: np.ndarray
    trees_bt: np.ndarray
    branches_bt: np.ndarray
    places_bt: np.ndarray
    asked_n: np.ndarray  # position in the flattened rows of what predicts each target
    targets_n: np.ndarray
    numbers_n: np.ndarray  # the continuation that each target belongs to


def common_prefix(texts: Sequence[tuple[int, ...]]) -> int:
    """The number of tokens with which all texts begin."""
    first, last = min(texts), max(texts)  # in lexical order: what these share, all share
    for place, (a, b) in enumerate(zip(first, last, strict=False)):
        if a != b:
            return place
    return min(len(first), len(last))


def grow_trees(group: Sequence[Continuation], numbers: Sequence[int], longest: int) -> list[Tree]:
    """One tree for a group, or several that repeat the trunk where one would be longer than a row may be."""
    inputs = [each.inputs for each in group]
    trunk = common_prefix(inputs) if len(group) > 1 else len(inputs[0])
    found: list[Tree] = []
    held: list[int] = []
    length = trunk
    for place, read in enumerate(inputs):
        if held and length + len(read) - trunk > longest:
            found.append(_tree(group, numbers, trunk, held))
            held, length = [], trunk
        held.append(place)
        length += len(read) - trunk
    return [*found, _tree(group, numbers, trunk, held)]


def _tree(group: Sequence[Continuation], numbers: Sequence[int], trunk: int, held: Sequence[int]) -> Tree:
    return Tree(trunk, tuple(group[place] for place in held), tuple(numbers[place] for place in held))


def fill_rows(trees: Sequence[Tree], length: int) -> list[list[Tree]]:
    """Rows of at most `length` tokens: the longest trees first, each into the row that it fills best."""
    by_space: list[list[int]] = [[] for _ in range(length + 1)]  # rows, by the room that is left in them
    rows: list[list[Tree]] = []
    for tree in sorted(trees, key=lambda tree: -tree.length):
        space = next((space for space in range(tree.length, length + 1) if by_space[space]), None)
        if space is None:
            row, space = len(rows), length
            rows.append([])
        else:
            row = by_space[space].pop()
        rows[row].append(tree)
        by_space[space - tree.length].append(row)
    return rows


def pack(rows: Sequence[Sequence[Tree]], length: int, count: int) -> PackedRows:
    """The arrays of `count` rows of `length` tokens; what is left of them is padding, in a tree of its own."""
    tokens, trees, branches, places = (np.zeros((count, length), np.int64) for _ in range(4))
    trees[:] = -1
    asked: list[np.ndarray] = []
    targets: list[tuple[int, ...]] = []
    numbers: list[np.ndarray] = []
    for row, held in enumerate(rows):
        at = 0
        for index, tree in enumerate(held):
            trunk, end = tree.trunk, at + tree.length
            trees[row, at:end] = index
            tokens[row, at : at + trunk] = tree.members[0].inputs[:trunk]
            places[row, at : at + trunk] = np.arange(trunk)
            begin = at + trunk
            for branch, (member, number) in enumerate(zip(tree.members, tree.numbers, strict=True), start=1):
                own = member.inputs[trunk:]
                tokens[row, begin : begin + len(own)] = own
                branches[row, begin : begin + len(own)] = branch
                places[row, begin : begin + len(own)] = np.arange(trunk, trunk + len(own))
                # A token is predicted where the one before it stands: in the trunk, or in the branch.
                before = np.arange(member.start - 1, len(member.tokens) - 1)
                asked.append(row * length + np.where(before < trunk, at + before, begin + before - trunk))
                targets.append(member.tokens[member.start :])
                numbers.append(np.full(len(before), number))
                begin += len(own)
            at = end
    flat = [target for each in targets for target in each]
    return PackedRows(
        tokens, trees, branches, places, np.concatenate(asked), np.array(flat, np.int64), np.concatenate(numbers)
    )
