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
    """Which blocks of queries and keys have anything to compute, for each window; no part of what is compiled around it."""
    return {window: block_mask(ids_bt, window) for window in set(windows)}


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
