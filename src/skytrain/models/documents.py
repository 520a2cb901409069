"""Attention that stays within documents.

On a GPU this uses torch's flex attention, which skips blocks in which no two tokens share a document and never
materializes a length x length mask. Elsewhere it uses such a mask.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from torch.nn.attention.flex_attention import BlockMask

SMALLEST_HEAD = 16  # smallest head size that the kernels support
# Gradients of larger heads take tiles of 64 tokens of queries, keys, values and outputs in shared memory: an A100 and later
# server GPUs have room for heads of 256, an A10G, L4 or L40S (99 KiB) has not.
WIDE_HEAD = 128
WIDE_HEAD_SHARED_BYTES = 160 * 1024


@dataclass(frozen=True)
class Documents:
    """The index of each token's document within its row, and the block mask for each attention window in use."""

    ids_bt: Tensor
    blocks: dict[int | None, BlockMask]

    def visible(self, window: int | None) -> Tensor:
        """Return a mask, True where a query (third dimension) sees a key (fourth), for attention without a block mask."""
        at = torch.arange(self.ids_bt.size(1), device=self.ids_bt.device)
        distance = at[:, None] - at[None, :]
        near = distance >= 0 if window is None else (distance >= 0) & (distance < window)
        return (self.ids_bt[:, None, :, None] == self.ids_bt[:, None, None, :]) & near


def make_documents(ids_bt: Tensor, windows: Sequence[int | None], head_size: int) -> Documents:
    """Build the document masks, once per forward pass for all layers."""
    if not (ids_bt.is_cuda and flex_serves(head_size, ids_bt.device)):
        return Documents(ids_bt, {})
    from .flex import block_masks  # imports the compiler, which takes seconds

    return Documents(ids_bt, block_masks(ids_bt, windows))


@torch.compiler.disable
def flex_serves(head_size: int, device: torch.device) -> bool:
    """Return whether flex attention's kernels take heads of this size on a GPU."""
    if head_size <= WIDE_HEAD:
        return head_size >= SMALLEST_HEAD
    properties = torch.cuda.get_device_properties(device)
    return getattr(properties, "shared_memory_per_block_optin", 0) >= WIDE_HEAD_SHARED_BYTES


def document_positions(starts_bt: Tensor) -> tuple[Tensor, Tensor]:
    """Return the index of each token's document within its row, and the token's position in that document.

    `starts_bt` is True where a document begins; what comes before the first start of a row is a document too.
    """
    here = torch.arange(starts_bt.size(1), device=starts_bt.device).expand_as(starts_bt)
    return starts_bt.cumsum(dim=1), here - torch.where(starts_bt, here, 0).cummax(dim=1).values
