"""Attention that stays within documents. On a GPU by torch's flex attention, which skips blocks where no two tokens share a
document and holds no mask of length by length; elsewhere by such a mask."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
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
    """Computed once for all layers of a forward pass."""
    if not ids_bt.is_cuda or head_size < SMALLEST_HEAD:
        return Documents(ids_bt, {})
    from .flex import block_masks  # brings the compiler with it, which takes seconds to load

    return Documents(ids_bt, block_masks(ids_bt, windows))


def documents_of(tokens_bt: Tensor, separator: int) -> tuple[Tensor, Tensor, Tensor]:
    """The tokens, the number of each one's document within its row, and its place within that document.

    A document begins with `separator`; a piece of one that begins without it has its first token v written as `~v`.
    """
    begins = (tokens_bt == separator) | (tokens_bt < 0)
    here = torch.arange(tokens_bt.size(1), device=tokens_bt.device).expand_as(tokens_bt)
    places = here - torch.where(begins, here, 0).cummax(dim=1).values
    return tokens_bt.where(tokens_bt >= 0, ~tokens_bt), begins.cumsum(dim=1), places
