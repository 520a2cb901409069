"""Attention that stays within documents. On a GPU by torch's flex attention, which skips blocks where no two tokens share a
document and holds no mask of length by length; elsewhere by such a mask."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from torch import Tensor

if TYPE_CHECKING:
    from torch.nn.attention.flex_attention import BlockMask

SMALLEST_HEAD = 16  # that the kernels take


@dataclass(frozen=True)
class Documents:
    """The number of each token's document within its row, and the blocks to compute for each window that a layer has."""

    ids_bt: Tensor
    blocks: dict[int | None, BlockMask]


def make_documents(ids_bt: Tensor, windows: Sequence[int | None], head_size: int) -> Documents:
    """Made once for all layers of a forward pass."""
    if not ids_bt.is_cuda or head_size < SMALLEST_HEAD:
        return Documents(ids_bt, {})
    from .flex import block_masks  # brings the compiler with it, which takes seconds to load

    return Documents(ids_bt, block_masks(ids_bt, windows))
