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


BLOCK = 128  # queries and keys of a block


def block_mask(ids_bt: Tensor, window: int | None) -> BlockMask:
    """Return which blocks of keys each block of queries sees, and which of them whole.

    Document numbers rise along a row, so that the first and the last of a block decide it: a square mask of all tokens, which
    torch would make of the function, is not needed.
    """

    def seen(row: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        near = key <= query if window is None else (key <= query) & (query - key < window)
        return near & (ids_bt[row, query] == ids_bt[row, key])

    length = ids_bt.size(1)
    at = torch.arange(0, length, BLOCK, device=ids_bt.device)
    last = (at + BLOCK - 1).clamp(max=length - 1)
    low_bn, high_bn = ids_bt[:, at], ids_bt[:, last]
    query, key = slice(None, None), None  # of the last two dimensions: rows of queries, columns of keys
    before = at[key, query] < at[query, key]
    touches = high_bn[:, key, query] >= low_bn[:, query, key]
    within = low_bn[:, key, query] == high_bn[:, query, key]
    if window is not None:
        touches = touches & (at[query, key] - last[key, query] < window)
        within = within & (last[query, key] - at[key, query] < window)
    complete = (at + BLOCK <= length)[query, key]  # torch computes the rest of the last block by its mask
    whole = before & touches & within & complete
    partly = (before | (at[key, query] == at[query, key])) & touches & ~whole
    counts, indices = _listed(partly)
    whole_counts, whole_indices = _listed(whole)
    return BlockMask.from_kv_blocks(
        counts,
        indices,
        whole_counts,
        whole_indices,
        BLOCK_SIZE=BLOCK,
        mask_mod=seen,
        seq_lengths=(length, length),
    )


def _listed(blocks_bqk: Tensor) -> tuple[Tensor, Tensor]:
    """Return the number of keys' blocks for each block of queries, and their numbers first in a row, for one head of all."""
    order = blocks_bqk.int().argsort(dim=-1, descending=True, stable=True)
    return blocks_bqk.sum(-1, dtype=torch.int32)[:, None], order.int()[:, None]


@functools.cache
def _compiled() -> Any:
    return torch.compile(flex_attention, dynamic=False)  # eager flex attention holds the whole square of scores


@functools.cache
def _capping(softcap: float) -> Any:
    """Return the function of a score that caps it: always the same one, since another would be compiled again."""

    def capped(score: Tensor, row: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        return softcap * torch.tanh(score / softcap)

    return capped


def attend_within(
    q_bhtq: Tensor,
    k_bgtq: Tensor,
    v_bgtq: Tensor,
    mask: BlockMask,
    scale: float,
    grouped: bool,
    softcap: float | None = None,
) -> Tensor:
    compute = flex_attention if torch.compiler.is_compiling() or not q_bhtq.is_cuda else _compiled()
    score = None if softcap is None else _capping(softcap)
    return compute(q_bhtq, k_bgtq, v_bgtq, score_mod=score, block_mask=mask, scale=scale, enable_gqa=grouped)
