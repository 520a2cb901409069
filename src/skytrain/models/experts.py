"""A mixture of experts: a router sends each token through a few of many small MLPs. Single-device code.

No token is dropped and no expert has a capacity: rows are sorted by expert, and one grouped product serves all experts, however
many rows each has. Rows of an expert keep the order of their tokens, so that the same tokens give the same sums.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..config import DecoderConfig, ExpertsConfig
from .loss import WithAuxiliary, join_auxiliary
from .mlp import MLP, Activation
from .recompute import is_recomputing


@dataclass(frozen=True)
class Routing:
    """The experts of each token, the weights of their outputs, and in training the router's auxiliary loss."""

    experts_nk: Tensor
    weights_nk: Tensor
    auxiliary: Tensor | None


class Router(nn.Module):
    """Scores every expert for every token and chooses the best, in float32.

    In training it counts in `load_e` how many tokens went to each expert; `take_load` reads and clears that.
    """

    def __init__(self, config: DecoderConfig, settings: ExpertsConfig) -> None:
        super().__init__()
        self.settings = settings
        self.weight = nn.Parameter(torch.empty(settings.count, config.width))
        self.bias = nn.Parameter(torch.empty(settings.count)) if config.bias == "all" else None
        # Not trained by gradients: balance_routers moves it after each step.
        self.load_bias = nn.Parameter(torch.empty(settings.count), requires_grad=False) if settings.bias else None
        self.load_e: Tensor | None = None

    def forward(self, x_btd: Tensor) -> Routing:
        with torch.autocast(x_btd.device.type, enabled=False):
            bias = None if self.bias is None else self.bias.float()
            logits_bte = F.linear(x_btd.float(), self.weight.float(), bias)
        return self.route(logits_bte)

    def route(self, logits_bte: Tensor) -> Routing:
        """Return the experts of each token, given its scores before softmax or sigmoid."""
        softmax = self.settings.scores == "softmax"
        scores_bte = logits_bte.softmax(-1) if softmax else logits_bte.sigmoid()
        experts_btk = self.choose(scores_bte.detach())
        weights_btk = scores_bte.gather(-1, experts_btk)
        if self.settings.normalize:
            weights_btk = weights_btk / (weights_btk.sum(-1, keepdim=True) + 1e-20)
        auxiliary: Tensor | None = None
        if self.training:
            load_be = count_load(experts_btk.flatten(1), self.settings.count)
            self.count(load_be)
            auxiliary = self.auxiliary_loss(logits_bte, scores_bte, load_be)
        weights_nk = (weights_btk * self.settings.scale).flatten(0, 1)
        return Routing(experts_btk.flatten(0, 1), weights_nk, auxiliary)

    def count(self, load_be: Tensor) -> None:
        """Add up the loads of sequences. A block that runs again for its backward pass has counted them already.

        Selective activation checkpointing also needs that: it takes no operation in the second run that the first had not.
        """
        if not is_recomputing():
            self.load_e = load_be.sum(0) if self.load_e is None else self.load_e + load_be.sum(0)

    def choose(self, scores_bte: Tensor) -> Tensor:
        """Return the experts of each token: the best by score plus bias, in its best groups of experts."""
        settings = self.settings
        ranked = scores_bte if self.load_bias is None else scores_bte + self.load_bias.detach().float()
        if settings.groups > 1:
            grouped = ranked.unflatten(-1, (settings.groups, -1))
            best = grouped.topk(min(2, grouped.size(-1)), dim=-1).values.sum(-1)  # as DeepSeek-V3 ranks groups
            kept = torch.zeros_like(best, dtype=torch.bool)
            kept.scatter_(-1, best.topk(settings.groups_per_token, dim=-1).indices, True)
            ranked = grouped.masked_fill(~kept[..., None], float("-inf")).flatten(-2)
        return ranked.topk(settings.per_token, dim=-1).indices

    def auxiliary_loss(self, logits_bte: Tensor, scores_bte: Tensor, load_be: Tensor) -> Tensor | None:
        """Return the balance loss and the z-loss, each with its weight; None where both weights are 0.

        The balance loss is that of Switch Transformer for each sequence, averaged: it then depends neither on micro-batches nor
        on how ranks share the batch. It is `per_token` where all experts have the same load.
        """
        loss: Tensor | None = None
        if self.settings.balance_loss:
            share_bte = scores_bte / scores_bte.sum(-1, keepdim=True)
            whole_be = self.sum_load(load_be)
            fraction_be = whole_be / whole_be.sum(-1, keepdim=True) * self.settings.per_token
            even = (fraction_be * share_bte.mean(1)).sum(-1).mean() * self.settings.count
            loss = even * self.settings.balance_loss
        if self.settings.z_loss:
            z_loss = logits_bte.logsumexp(-1).square().mean() * self.settings.z_loss
            loss = z_loss if loss is None else loss + z_loss
        return loss

    def sum_load(self, load_be: Tensor) -> Tensor:
        """Return the load of whole sequences. Parallelism replaces this where ranks hold parts of them."""
        return load_be

    def take_load(self) -> Tensor | None:
        """Return how many tokens went to each expert since the last call; None if there were none."""
        load, self.load_e = self.load_e, None
        return load


def count_load(experts_bn: Tensor, experts: int) -> Tensor:
    """Count in each row how often each expert occurs: whole numbers, so that any order of adding gives the same."""
    rows = experts_bn.size(0)
    # As one vector: torch has a deterministic kernel for that only.
    places = (experts_bn + torch.arange(rows, device=experts_bn.device)[:, None] * experts).flatten()
    return experts_bn.new_zeros(rows * experts).scatter_add_(0, places, torch.ones_like(places)).view(rows, experts)


class ExpertLinear(nn.Module):
    """A linear layer for each expert, as one tensor."""

    def __init__(self, experts: int, inputs: int, outputs: int, bias: bool) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(experts, outputs, inputs))
        self.bias = nn.Parameter(torch.empty(experts, outputs)) if bias else None

    def forward(self, rows_nd: Tensor, load_e: Tensor) -> Tensor:
        """Return each row times the matrix of its expert, plus its bias; the first `load_e[0]` rows are the first expert's."""
        weight: Tensor = self.weight
        kind = rows_nd.device.type
        if torch.is_autocast_enabled(kind):  # which does not know grouped products
            dtype = torch.get_autocast_dtype(kind)
            rows_nd, weight = rows_nd.to(dtype), weight.to(dtype)
        found = F.grouped_mm(rows_nd, weight.mT, offs=load_e.cumsum(0).to(torch.int32))
        return found if self.bias is None else AddExpertBias.apply(found, self.bias, load_e)


class Experts(nn.Module):
    """The MLPs of all experts, over rows that are sorted by expert."""

    def __init__(self, config: DecoderConfig, settings: ExpertsConfig) -> None:
        super().__init__()
        self.activation = Activation(config)
        bias = config.bias == "all"
        self.gate = ExpertLinear(settings.count, config.width, settings.width, bias)
        self.up = ExpertLinear(settings.count, config.width, settings.width, bias)
        self.down = ExpertLinear(settings.count, settings.width, config.width, bias)
        self.served: Tensor | None = None  # rows since `take_served`, in training

    def forward(self, rows_nd: Tensor, load_e: Tensor) -> Tensor:
        self.count_served(load_e.sum())
        hidden = self.activation.gated(self.gate(rows_nd, load_e), self.up(rows_nd, load_e))
        return self.down(hidden, load_e)

    def count_served(self, rows: Tensor) -> None:
        """Note that so many rows were computed, in training."""
        if self.training and not is_recomputing():
            self.served = rows if self.served is None else self.served + rows

    def take_served(self) -> Tensor | None:
        """Return how many rows the experts of this rank computed since the last call; None if there were none."""
        served, self.served = self.served, None
        return served


class MixtureOfExperts(nn.Module):
    """Router, experts and the shared expert, in place of a block's MLP. The auxiliary loss comes with the output."""

    def __init__(self, config: DecoderConfig, settings: ExpertsConfig) -> None:
        super().__init__()
        self.router = Router(config, settings)
        self.experts = Experts(config, settings)
        self.shared = MLP(config, settings.shared_width) if settings.shared_width else None

    def forward(self, x_btd: Tensor) -> WithAuxiliary:
        routing = self.router(x_btd)
        y_btd = self.dispatch(x_btd.flatten(0, 1), routing).view_as(x_btd)
        if self.shared is not None:
            y_btd = y_btd + self.shared(x_btd)
        return join_auxiliary(y_btd, routing.auxiliary)

    def dispatch(self, x_nd: Tensor, routing: Routing) -> Tensor:
        """Return the weighted sum of the experts' outputs for each token."""
        each = routing.experts_nk.size(1)
        experts_r = routing.experts_nk.flatten()
        order_r = experts_r.argsort(stable=True)
        load_e = count_load(experts_r[None], self.router.settings.count)[0]
        rows_rd: Any = RowsByExpert.apply(x_nd, order_r, each)
        rows_rd = self.run_experts(rows_rd, load_e)
        rows_nkd: Any = Permute.apply(rows_rd, order_r.argsort(), order_r).unflatten(0, (-1, each))
        return (rows_nkd * routing.weights_nk[..., None].to(rows_nkd.dtype)).sum(1)

    def run_experts(self, rows_rd: Tensor, load_e: Tensor) -> Tensor:
        """Return each row's output of its expert. Expert parallelism replaces this, as its experts are on other ranks."""
        out: Tensor = self.experts(rows_rd, load_e)
        return out


class AddExpertBias(torch.autograd.Function):
    """Rows plus the bias of their expert. Its gradient adds up each expert's rows in their order."""

    @staticmethod
    def forward(ctx: Any, rows_rd: Tensor, bias_ed: Tensor, load_e: Tensor) -> Tensor:
        ctx.save_for_backward(load_e)
        ctx.dtype = bias_ed.dtype
        return rows_rd + bias_ed.to(rows_rd.dtype).repeat_interleave(load_e, dim=0, output_size=rows_rd.size(0))

    @staticmethod
    def backward(ctx: Any, grad_rd: Tensor) -> tuple[Tensor, Tensor, None]:
        (load_e,) = ctx.saved_tensors
        # `unsafe` leaves out a check of the lengths, for which a GPU's host would have to wait.
        grad_ed = torch.segment_reduce(grad_rd.float(), "sum", lengths=load_e, axis=0, unsafe=True)
        return grad_rd, grad_ed.to(ctx.dtype), None


class RowsByExpert(torch.autograd.Function):
    """Row r of the output is the token of row `order_r[r]`, where each token has `each` rows.

    Written out because the gradient of indexing adds in no fixed order on a GPU; this one is a permutation and a sum.
    """

    @staticmethod
    def forward(ctx: Any, x_nd: Tensor, order_r: Tensor, each: int) -> Tensor:
        ctx.save_for_backward(order_r)
        ctx.each = each
        return x_nd[order_r // each]

    @staticmethod
    def backward(ctx: Any, grad_rd: Tensor) -> tuple[Tensor, None, None]:
        (order_r,) = ctx.saved_tensors
        return grad_rd[order_r.argsort()].unflatten(0, (-1, ctx.each)).sum(1), None, None


class Permute(torch.autograd.Function):
    """Rows in another order. `back_r` is the inverse of `order_r`, which puts their gradients in place."""

    @staticmethod
    def forward(ctx: Any, x_rd: Tensor, order_r: Tensor, back_r: Tensor) -> Tensor:
        ctx.save_for_backward(back_r)
        return x_rd[order_r]

    @staticmethod
    def backward(ctx: Any, grad_rd: Tensor) -> tuple[Tensor, None, None]:
        (back_r,) = ctx.saved_tensors
        return grad_rd[back_r], None, None
