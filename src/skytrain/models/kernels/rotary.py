"""Query and key norms and rotary positions in one pass each way, from the packed product to what attention reads.

Rows of the packed product are ordered as `Attention.qkv` orders them: for each key-value group its queries, its key, its
value. The backward pass writes the packed gradient that the next products read, values included.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from .backend import Launch, has_triton, kernels_available, programs
from .sums import sum_partial

FORWARD = Launch(tile=16, warps=2)
BACKWARD = Launch(tile=16, warps=2, per_multiprocessor=32)


@dataclass(frozen=True)
class Turn:
    """The positions by which queries and keys are turned: cos and sin (L, head size), and each row's place in them."""

    cos: Tensor
    sin: Tensor
    length: int  # tokens in a sequence: without `places`, row n is at position n % length
    places: Tensor | None = None  # (N,)


if has_triton():
    import triton
    import triton.language as tl

    @triton.jit
    def _place(places_ptr, row, rows, length, PLACED: tl.constexpr):
        return tl.load(places_ptr + row, mask=row < rows, other=0) if PLACED else row % length

    @triton.jit
    def _turn_forward(
        packed_ptr,
        q_ptr,
        k_ptr,
        q_gain_ptr,
        k_gain_ptr,
        cos_ptr,
        sin_ptr,
        places_ptr,
        rows,
        length,
        heads,
        groups,
        eps,
        NORM: tl.constexpr,
        PLACED: tl.constexpr,
        HALF: tl.constexpr,
        ROWS: tl.constexpr,
    ):
        """Handle one head of queries or keys in a tile of rows in each program; the two halves of a head are turned together."""
        each = heads // groups
        head = tl.program_id(1)
        query = head < heads
        group = tl.where(query, head // each, head - heads)
        slot = tl.where(query, head % each, each)
        row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
        column = tl.arange(0, HALF)
        inside = (row < rows)[:, None] & (column < HALF)[None, :]
        size = 2 * HALF
        stride = groups * (each + 2) * size
        at = row[:, None].to(tl.int64) * stride + ((group * (each + 2) + slot) * size + column)[None, :]
        first = tl.load(packed_ptr + at, mask=inside, other=0.0).to(tl.float32)
        second = tl.load(packed_ptr + at + HALF, mask=inside, other=0.0).to(tl.float32)
        if NORM:
            gain_ptr = q_gain_ptr if query else k_gain_ptr
            squares = tl.sum(first * first, axis=1) + tl.sum(second * second, axis=1)
            rstd = 1.0 / tl.sqrt(squares / size + eps)
            first *= rstd[:, None] * tl.load(gain_ptr + column).to(tl.float32)[None, :]
            second *= rstd[:, None] * tl.load(gain_ptr + HALF + column).to(tl.float32)[None, :]
        place = _place(places_ptr, row, rows, length, PLACED)
        angle = place[:, None] * size + column[None, :]
        cos = tl.load(cos_ptr + angle, mask=inside, other=0.0)
        sin = tl.load(sin_ptr + angle, mask=inside, other=0.0)
        if query:
            to = q_ptr + row[:, None].to(tl.int64) * (heads * size) + (head * size + column)[None, :]
        else:
            to = k_ptr + row[:, None].to(tl.int64) * (groups * size) + (group * size + column)[None, :]
        tl.store(to, first * cos - second * sin, mask=inside)
        tl.store(to + HALF, second * cos + first * sin, mask=inside)

    @triton.jit
    def _turn_backward(
        dq_ptr,
        dk_ptr,
        dv_ptr,
        packed_ptr,
        q_gain_ptr,
        k_gain_ptr,
        cos_ptr,
        sin_ptr,
        places_ptr,
        dpacked_ptr,
        partial_ptr,
        rows,
        length,
        heads,
        groups,
        eps,
        q_stride,
        k_stride,
        v_stride,
        NORM: tl.constexpr,
        PLACED: tl.constexpr,
        HALF: tl.constexpr,
        ROWS: tl.constexpr,
    ):
        """Handle one head and every n-th tile of rows in each program, which sums the gradient of its gain in registers."""
        each = heads // groups
        head = tl.program_id(1)
        query = head < heads
        value = head >= heads + groups
        group = tl.where(query, head // each, tl.where(value, head - heads - groups, head - heads))
        slot = tl.where(query, head % each, tl.where(value, each + 1, each))
        column = tl.arange(0, HALF)
        size = 2 * HALF
        stride = groups * (each + 2) * size
        if query:
            from_ptr = dq_ptr
            from_stride = q_stride
            gain_ptr = q_gain_ptr
        elif value:
            from_ptr = dv_ptr
            from_stride = v_stride
            gain_ptr = k_gain_ptr
        else:
            from_ptr = dk_ptr
            from_stride = k_stride
            gain_ptr = k_gain_ptr
        within = tl.where(query, head, group) * size
        dgain_first = tl.zeros((ROWS, HALF), dtype=tl.float32)
        dgain_second = tl.zeros((ROWS, HALF), dtype=tl.float32)
        for start in range(tl.program_id(0) * ROWS, rows, tl.num_programs(0) * ROWS):
            row = start + tl.arange(0, ROWS)
            inside = (row < rows)[:, None] & (column < HALF)[None, :]
            of = from_ptr + row[:, None].to(tl.int64) * from_stride + (within + column)[None, :]
            first = tl.load(of, mask=inside, other=0.0).to(tl.float32)
            second = tl.load(of + HALF, mask=inside, other=0.0).to(tl.float32)
            at = row[:, None].to(tl.int64) * stride + ((group * (each + 2) + slot) * size + column)[None, :]
            if not value:
                place = _place(places_ptr, row, rows, length, PLACED)
                angle = place[:, None] * size + column[None, :]
                cos = tl.load(cos_ptr + angle, mask=inside, other=0.0)
                sin = tl.load(sin_ptr + angle, mask=inside, other=0.0)
                turned = second
                second = second * cos - first * sin
                first = first * cos + turned * sin
                if NORM:
                    x_first = tl.load(packed_ptr + at, mask=inside, other=0.0).to(tl.float32)
                    x_second = tl.load(packed_ptr + at + HALF, mask=inside, other=0.0).to(tl.float32)
                    squares = tl.sum(x_first * x_first, axis=1) + tl.sum(x_second * x_second, axis=1)
                    rstd = 1.0 / tl.sqrt(squares / size + eps)
                    x_first *= rstd[:, None]
                    x_second *= rstd[:, None]
                    dgain_first += first * x_first
                    dgain_second += second * x_second
                    first *= tl.load(gain_ptr + column).to(tl.float32)[None, :]
                    second *= tl.load(gain_ptr + HALF + column).to(tl.float32)[None, :]
                    along = (tl.sum(first * x_first, axis=1) + tl.sum(second * x_second, axis=1)) / size
                    first = (first - x_first * along[:, None]) * rstd[:, None]
                    second = (second - x_second * along[:, None]) * rstd[:, None]
            tl.store(dpacked_ptr + at, first, mask=inside)
            tl.store(dpacked_ptr + at + HALF, second, mask=inside)
        if NORM and not value:
            # Rows of one head follow each other, and heads of queries come first: both sums are over contiguous rows.
            to = partial_ptr + (head * tl.num_programs(0) + tl.program_id(0)) * size + column
            tl.store(to, tl.sum(dgain_first, axis=0))
            tl.store(to + HALF, tl.sum(dgain_second, axis=0))


def reference(
    packed_nr: Tensor, q_gain: Tensor | None, k_gain: Tensor | None, eps: float, turn: Turn, groups: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Compute the reference in plain torch: queries (N, H, Q), keys and values (N, G, Q)."""
    rows, size = len(packed_nr), turn.cos.shape[-1]
    parts = packed_nr.view(rows, groups, -1, size)
    q, k, v = parts[:, :, :-2].reshape(rows, -1, size), parts[:, :, -2], parts[:, :, -1]
    places = turn.places if turn.places is not None else torch.arange(rows, device=q.device) % turn.length
    cos, sin = turn.cos[places][:, None], turn.sin[places][:, None]

    def turned(x: Tensor, gain: Tensor | None) -> Tensor:
        x = x.float()
        if gain is not None:
            x = F.rms_norm(x, gain.shape, gain.float(), eps)
        first, second = x.chunk(2, dim=-1)
        return (x * cos + torch.cat((-second, first), dim=-1) * sin).to(packed_nr.dtype)

    return turned(q, q_gain), turned(k, k_gain), v


class Turned(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, packed_nr: Tensor, q_gain: Tensor | None, k_gain: Tensor | None, eps: float, turn: Turn, groups: int
    ) -> tuple[Tensor, Tensor, Tensor]:
        rows, size = len(packed_nr), turn.cos.shape[-1]
        parts = packed_nr.view(rows, groups, -1, size)
        heads = groups * (parts.shape[2] - 2)
        q = torch.empty(rows, heads, size, dtype=packed_nr.dtype, device=packed_nr.device)
        k = torch.empty(rows, groups, size, dtype=packed_nr.dtype, device=packed_nr.device)
        grid = (triton.cdiv(rows, FORWARD.tile), heads + groups)
        _turn_forward[grid](
            packed_nr, q, k, *_gains(packed_nr, q_gain, k_gain), turn.cos, turn.sin, _places(packed_nr, turn),
            rows, turn.length, heads, groups, eps,
            NORM=q_gain is not None, PLACED=turn.places is not None, HALF=size // 2, ROWS=FORWARD.tile, num_warps=FORWARD.warps,
        )  # fmt: skip
        ctx.save_for_backward(packed_nr, q_gain, k_gain)
        ctx.settings = (eps, turn, groups, heads)
        return q, k, parts[:, :, -1]

    @staticmethod
    def backward(ctx: Any, dq: Tensor, dk: Tensor, dv: Tensor) -> tuple[Any, ...]:
        packed_nr, q_gain, k_gain = ctx.saved_tensors
        eps, turn, groups, heads = ctx.settings
        rows, size = len(packed_nr), turn.cos.shape[-1]
        norms = q_gain is not None
        flat = [x.reshape(rows, -1) for x in (dq, dk, dv)]
        dpacked = torch.empty_like(packed_nr)
        all_heads = heads + 2 * groups
        row_programs = max(1, programs(packed_nr.device, BACKWARD.per_multiprocessor) // all_heads)
        shape = (heads + groups, row_programs, size) if norms else (1, 1, size)
        partial = torch.empty(shape, dtype=torch.float32, device=packed_nr.device)
        _turn_backward[(row_programs, all_heads)](
            *flat, packed_nr, *_gains(packed_nr, q_gain, k_gain), turn.cos, turn.sin, _places(packed_nr, turn),
            dpacked, partial, rows, turn.length, heads, groups, eps, *(x.stride(0) for x in flat),
            NORM=norms, PLACED=turn.places is not None, HALF=size // 2, ROWS=BACKWARD.tile, num_warps=BACKWARD.warps,
        )  # fmt: skip
        if not norms:
            return dpacked, None, None, None, None, None
        dq_gain = sum_partial(partial[:heads].flatten(0, 1)).to(q_gain.dtype)
        dk_gain = sum_partial(partial[heads:].flatten(0, 1)).to(k_gain.dtype)
        return dpacked, dq_gain, dk_gain, None, None, None


def _gains(packed_nr: Tensor, q_gain: Tensor | None, k_gain: Tensor | None) -> tuple[Tensor, Tensor]:
    """Return the gains, or anything where there are none: a kernel takes a pointer that it does not read."""
    return (packed_nr, packed_nr) if q_gain is None or k_gain is None else (q_gain, k_gain)


def _places(packed_nr: Tensor, turn: Turn) -> Tensor:
    return packed_nr if turn.places is None else turn.places


def turn_heads(
    packed_nr: Tensor, q_gain: Tensor | None, k_gain: Tensor | None, eps: float, turn: Turn, groups: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Return queries (N, H, Q) and keys (N, G, Q), normalized where there are gains, and turned; and values (N, G, Q)."""
    size = turn.cos.shape[-1]
    if kernels_available(packed_nr.device) and not size & (size - 1):
        return Turned.apply(packed_nr, q_gain, k_gain, eps, turn, groups)
    return reference(packed_nr, q_gain, k_gain, eps, turn, groups)
