"""Experts' MLPs: rows sorted by expert, grouped products, SwiGLU with the router's weight in one pass each way.

A token's outputs are weighted where their hidden sizes are computed, before the last product: then the way back into the order
of tokens only adds rows, and neither pass keeps or reads the experts' outputs for the sake of the weights. Rows are moved once
each way in both passes. Sums have a fixed order, and nothing depends on the loads but the contents of `Sorted`: the host never
waits for them, and no shape changes with them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from .backend import Launch, has_triton, kernels_available
from .linear import product, product_fp32

SWIGLU = Launch(tile=512, warps=2)  # columns per iteration: a program has one row
SUM = Launch(tile=1, warps=4)  # a token per program
SMALL = 256  # experts whose numbers fit a byte, which is sorted in one pass

if has_triton():
    import triton
    import triton.language as tl

    @triton.jit
    def _weighted_swiglu_forward(pre_ptr, weight_ptr, hidden_ptr, columns, COLUMNS: tl.constexpr):
        row = tl.program_id(0).to(tl.int64)
        weight = tl.load(weight_ptr + row)
        for start in range(0, columns, COLUMNS):
            column = start + tl.arange(0, COLUMNS)
            inside = column < columns
            at = pre_ptr + row * (2 * columns) + column
            gate = tl.load(at, mask=inside, other=0.0).to(tl.float32)
            up = tl.load(at + columns, mask=inside, other=0.0).to(tl.float32)
            tl.store(hidden_ptr + row * columns + column, gate * tl.sigmoid(gate) * up * weight, mask=inside)

    @triton.jit
    def _weighted_swiglu_backward(
        dhidden_ptr, pre_ptr, weight_ptr, dpre_ptr, dweight_ptr, columns, COLUMNS: tl.constexpr
    ):
        row = tl.program_id(0).to(tl.int64)
        weight = tl.load(weight_ptr + row)
        along = tl.zeros((COLUMNS,), dtype=tl.float32)
        for start in range(0, columns, COLUMNS):
            column = start + tl.arange(0, COLUMNS)
            inside = column < columns
            at = row * (2 * columns) + column
            gate = tl.load(pre_ptr + at, mask=inside, other=0.0).to(tl.float32)
            up = tl.load(pre_ptr + at + columns, mask=inside, other=0.0).to(tl.float32)
            dhidden = tl.load(dhidden_ptr + row * columns + column, mask=inside, other=0.0).to(tl.float32)
            open_ = tl.sigmoid(gate)
            active = gate * open_
            along += dhidden * active * up
            dhidden *= weight
            tl.store(dpre_ptr + at, dhidden * up * (open_ + active * (1.0 - open_)), mask=inside)
            tl.store(dpre_ptr + at + columns, dhidden * active, mask=inside)
        tl.store(dweight_ptr + row, tl.sum(along, axis=0))

    @triton.jit
    def _sum_placed(rows_ptr, places_ptr, out_ptr, width, EACH: tl.constexpr, WIDTH: tl.constexpr):
        token = tl.program_id(0).to(tl.int64)
        column = tl.arange(0, WIDTH)
        inside = column < width
        total = tl.zeros((WIDTH,), dtype=tl.float32)
        for number in tl.static_range(EACH):
            place = tl.load(places_ptr + token * EACH + number)
            total += tl.load(rows_ptr + place * width + column, mask=inside, other=0.0).to(tl.float32)
        tl.store(out_ptr + token * width + column, total, mask=inside)


@dataclass(frozen=True)
class Sorted:
    """Rows by expert, those of an expert in the order of their tokens. A token has a row for each of its experts."""

    tokens_r: Tensor  # the token of each row
    places_nk: Tensor  # the row of each token and each of its experts
    ends_e: Tensor  # int32: where the rows of each expert end


def sort_by_expert(experts_nk: Tensor, count: int) -> Sorted:
    """Return where the rows of tokens go, given each token's experts out of `count`."""
    tokens, each = experts_nk.shape
    keys = experts_nk.flatten().to(torch.uint8 if count <= SMALL else torch.int16)
    ordered, order = keys.sort(stable=True)
    places = torch.empty_like(order)
    places[order] = torch.arange(tokens * each, device=order.device)
    numbers = torch.arange(count, device=keys.device, dtype=keys.dtype)
    ends = torch.searchsorted(ordered, numbers, right=True, out_int32=True)
    return Sorted(order // each, places.view(tokens, each), ends)


def swiglu_reference(pre_rf: Tensor, weights_r: Tensor) -> Tensor:
    """Compute the reference in plain torch; gate and up are the two halves of a row."""
    gate, up = pre_rf.float().chunk(2, dim=1)
    return (F.silu(gate) * up * weights_r[:, None]).to(pre_rf.dtype)


def weighted_swiglu(pre_rf: Tensor, weights_r: Tensor, kernels: bool) -> Tensor:
    """Return silu(gate) * up * weight, rounded only once."""
    if not kernels:
        return swiglu_reference(pre_rf, weights_r)
    rows, columns = len(pre_rf), pre_rf.shape[1] // 2
    hidden = torch.empty(rows, columns, dtype=pre_rf.dtype, device=pre_rf.device)
    _weighted_swiglu_forward[(rows,)](
        pre_rf, weights_r, hidden, columns, COLUMNS=_strip(columns), num_warps=SWIGLU.warps
    )
    return hidden


def weighted_swiglu_gradient(
    dhidden_rf: Tensor, pre_rf: Tensor, weights_r: Tensor, kernels: bool
) -> tuple[Tensor, Tensor]:
    """Return the gradients of `weighted_swiglu`'s input, in its precision, and of the weights in float32."""
    if not kernels:
        gate, up = pre_rf.float().chunk(2, dim=1)
        open_ = gate.sigmoid()
        active = gate * open_
        dhidden = dhidden_rf.float()
        dweights = (dhidden * active * up).sum(1)
        dhidden = dhidden * weights_r[:, None]
        dgate = dhidden * up * (open_ + active * (1.0 - open_))
        return torch.cat((dgate, dhidden * active), dim=1).to(pre_rf.dtype), dweights
    rows, columns = dhidden_rf.shape
    dpre = torch.empty_like(pre_rf)
    dweights = torch.empty_like(weights_r)
    _weighted_swiglu_backward[(rows,)](
        dhidden_rf, pre_rf, weights_r, dpre, dweights, columns, COLUMNS=_strip(columns), num_warps=SWIGLU.warps
    )
    return dpre, dweights


def _strip(columns: int) -> int:
    return min(SWIGLU.tile, triton.next_power_of_2(columns))


def sum_placed(rows_rd: Tensor, places_nk: Tensor, kernels: bool) -> Tensor:
    """Return for each token the sum of its rows, added in float32 in the order of its experts."""
    tokens, each = places_nk.shape
    width = rows_rd.shape[1]
    if not kernels:
        return rows_rd[places_nk].float().sum(1).to(rows_rd.dtype)
    out = torch.empty(tokens, width, dtype=rows_rd.dtype, device=rows_rd.device)
    _sum_placed[(tokens,)](
        rows_rd, places_nk, out, width, EACH=each, WIDTH=triton.next_power_of_2(width), num_warps=SUM.warps
    )
    return out


class ExpertsMLP(torch.autograd.Function):
    """Each token's weighted sum of `down(silu(gate(x)) * up(x))` over its experts.

    Weights are (E, F, D) and (E, D, F) in float32, with copies in the precision of x. Grouped products return that precision,
    so the weights' gradients are rounded to it once for each micro-batch.
    """

    @staticmethod
    def forward(
        ctx: Any,
        x_nd: Tensor,
        weights_nk: Tensor,
        gate_efd: Tensor,
        up_efd: Tensor,
        low_efd: Tensor,
        down_edf: Tensor,
        down_low: Tensor,
        order: Sorted,
        kernels: bool,
    ) -> Tensor:
        weights_r = torch.empty_like(weights_nk).flatten()
        weights_r[order.places_nk.flatten()] = weights_nk.flatten()
        rows_rd = x_nd.index_select(0, order.tokens_r)
        pre_rf = F.grouped_mm(rows_rd, low_efd.mT, offs=order.ends_e)
        hidden_rf = weighted_swiglu(pre_rf, weights_r, kernels)
        out_rd = F.grouped_mm(hidden_rf, down_low.mT, offs=order.ends_e)
        ctx.save_for_backward(
            rows_rd, weights_r, low_efd, down_low, pre_rf, hidden_rf, order.tokens_r, order.places_nk, order.ends_e
        )
        ctx.kernels = kernels
        return sum_placed(out_rd, order.places_nk, kernels)

    @staticmethod
    def backward(ctx: Any, dy_nd: Tensor) -> tuple[Any, ...]:
        rows_rd, weights_r, low_efd, down_low, pre_rf, hidden_rf, tokens_r, places_nk, ends_e = ctx.saved_tensors
        dout_rd = dy_nd.index_select(0, tokens_r)
        ddown = F.grouped_mm(dout_rd.t(), hidden_rf, offs=ends_e)
        dhidden_rf = F.grouped_mm(dout_rd, down_low, offs=ends_e)
        dpre_rf, dweights_r = weighted_swiglu_gradient(dhidden_rf, pre_rf, weights_r, ctx.kernels)
        dlow = F.grouped_mm(dpre_rf.t(), rows_rd, offs=ends_e)
        drows_rd = F.grouped_mm(dpre_rf, low_efd, offs=ends_e)
        dgate, dup = dlow.chunk(2, dim=1)
        dx_nd = sum_placed(drows_rd, places_nk, ctx.kernels)
        return dx_nd, dweights_r[places_nk], dgate, dup, None, ddown, None, None, None


def experts_mlp(
    x_nd: Tensor, weights_nk: Tensor, weights: tuple[Tensor, Tensor, Tensor], order: Sorted, kernels: bool = True
) -> Tensor:
    """Return the sum of the experts' outputs for each token, times the router's weights.

    `weights` are gate, up and down of all experts.
    """
    gate, up, down = weights
    experts, hidden, width = gate.shape
    low_efd = torch.empty(experts, 2 * hidden, width, dtype=x_nd.dtype, device=x_nd.device)
    with torch.no_grad():
        low_efd[:, :hidden].copy_(gate)
        low_efd[:, hidden:].copy_(up)
        down_low = down.to(x_nd.dtype)
    with_kernels = kernels and kernels_available(x_nd.device)
    return ExpertsMLP.apply(x_nd, weights_nk.float(), gate, up, low_efd, down, down_low, order, with_kernels)


class RouterLogits(torch.autograd.Function):
    """`x @ weight.T` in float32, where x is bf16 and the weight is not.

    The weight is a sum of three bf16 matrices (24 bits), so that one product on tensor cores has float32's accuracy and x needs
    no copy in float32. Gradients are computed as those of other layers: the input's in bf16, the weight's in float32.
    """

    @staticmethod
    def forward(ctx: Any, x_nd: Tensor, weight_ed: Tensor) -> Tensor:
        parts = []
        rest = weight_ed.float()
        for _ in range(3):
            parts.append(rest.to(x_nd.dtype))
            rest = rest - parts[-1].float()
        ctx.save_for_backward(x_nd, parts[0])
        ctx.dtype = weight_ed.dtype
        high, middle, low = product_fp32(x_nd, torch.cat(parts).t()).chunk(3, dim=1)
        return high + (middle + low)

    @staticmethod
    def backward(ctx: Any, dlogits_ne: Tensor) -> tuple[Tensor, Tensor]:
        x_nd, low_ed = ctx.saved_tensors
        dlow_ne = dlogits_ne.to(x_nd.dtype)
        return product(dlow_ne, low_ed), product_fp32(dlow_ne.t(), x_nd).to(ctx.dtype)


def router_logits(x_nd: Tensor, weight_ed: Tensor) -> Tensor:
    """Return the router's logits, in float32."""
    if x_nd.dtype == torch.float32:
        return F.linear(x_nd, weight_ed.float())
    return RouterLogits.apply(x_nd, weight_ed)
