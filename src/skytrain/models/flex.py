"""torch's flex attention over documents that share rows. Loading this loads torch's compiler."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask, create_block_mask, flex_attention


@torch.compiler.disable
def block_masks(ids_bt: Tensor, windows: Sequence[int | None]) -> dict[int | None, BlockMask]:
    """Return, for each window, the mask of the blocks in which queries see keys; it is excluded from compilation."""
    return {window: block_mask(ids_bt, window) for window in set(windows)}


@torch.compiler.disable
def branch_block_masks(
    trees_bt: Tensor, branches_bt: Tensor, places_bt: Tensor, windows: Sequence[int | None]
) -> dict[int | None, BlockMask]:
    """Return the block mask for each window, for texts that branch; it is excluded from compilation."""
    rows, length = trees_bt.shape

    def mask_for(window: int | None) -> BlockMask:
        def seen(row: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
            distance = places_bt[row, query] - places_bt[row, key]
            near = distance >= 0 if window is None else (distance >= 0) & (distance < window)
            branch = branches_bt[row, key]
            shared = (branch == 0) | (branch == branches_bt[row, query])
            return near & shared & (trees_bt[row, query] == trees_bt[row, key])

        return create_block_mask(seen, rows, None, length, length, device=trees_bt.device)

    return {window: mask_for(window) for window in set(windows)}


def block_mask(ids_bt: Tensor, window: int | None) -> BlockMask:
    def seen(row: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        near = key <= query if window is None else (key <= query) & (query - key < window)
        return near & (ids_bt[row, query] == ids_bt[row, key])

    rows, length = ids_bt.shape
    return create_block_mask(seen, rows, None, length, length, device=ids_bt.device)


@functools.cache
def _compiled() -> Any:
    return torch.compile(flex_attention, dynamic=False)  # eager flex attention holds the whole square of scores


def attend_within(
    q_bhtq: Tensor, k_bgtq: Tensor, v_bgtq: Tensor, mask: BlockMask, scale: float, grouped: bool
) -> Tensor:
    compute = flex_attention if torch.compiler.is_compiling() or not q_bhtq.is_cuda else _compiled()
    return compute(q_bhtq, k_bgtq, v_bgtq, block_mask=mask, scale=scale, enable_gqa=grouped)
