"""Several texts in one row that share a prefix: the prefix is computed once, and each continuation attends to it and itself.

A row holds trees. The tokens of a tree are its trunk, then its branches one after another. A token of a branch stands at
the place that it would have if only its branch followed the trunk.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from .documents import Documents, flex_serves


@dataclass(frozen=True)
class Branches:
    """How the tokens of packed rows belong together, and which positions' logits are asked for."""

    trees_bt: Tensor  # which tree of its row a token belongs to
    branches_bt: Tensor  # 0 in the trunk, from 1 on in the branches
    places_bt: Tensor  # its position in its own text
    asked_n: Tensor  # positions in the flattened rows; one may be asked for more than once


@dataclass(frozen=True)
class BranchingDocuments(Documents):
    """`Documents` whose texts branch; `ids_bt` are the trees."""

    branches_bt: Tensor
    places_bt: Tensor

    def visible(self, window: int | None) -> Tensor:
        branch_q = self.branches_bt[:, None, :, None]
        branch_k = self.branches_bt[:, None, None, :]
        distance = self.places_bt[:, None, :, None] - self.places_bt[:, None, None, :]
        near = distance >= 0 if window is None else (distance >= 0) & (distance < window)
        same_tree = self.ids_bt[:, None, :, None] == self.ids_bt[:, None, None, :]
        return same_tree & near & ((branch_k == 0) | (branch_k == branch_q))


def branching_documents(branches: Branches, windows: Sequence[int | None], head_size: int) -> BranchingDocuments:
    """Build the masks, once per forward pass for all layers."""
    trees = branches.trees_bt
    ids = branches.branches_bt
    places = branches.places_bt
    if not (trees.is_cuda and flex_serves(head_size, trees.device)):
        return BranchingDocuments(trees, {}, ids, places)
    from .flex import branch_block_masks  # imports the compiler, which takes seconds

    return BranchingDocuments(trees, branch_block_masks(trees, ids, places, windows), ids, places)
