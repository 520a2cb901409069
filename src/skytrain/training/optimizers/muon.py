"""Muon and AdamW as one optimizer, on whole matrices and on matrices that ranks hold in parts.

Muon (Jordan et al. 2024) moves a matrix by the nearest orthogonal matrix to its momentum. Equal shapes are computed together,
so a step is a few large products instead of hundreds of small ones, and ranks that shard matrices by rows share the work: each
receives whole the ones that it owns, and sends back the parts.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from ...parallel import local_part_of, zeros_by_row
from .groups import HIDDEN_MATRICES

# Polar Express (Amsel et al. 2025, arXiv 2505.16932): the best five quintic polynomials for singular values in [0.001, 1], with
# the paper's safeguards against bf16's rounding: values may exceed 1 by 2%, and the first polynomials are cushioned.
POLAR_EXPRESS = (
    (8.156554524902461, -22.48329292557795, 15.878769915207462),
    (4.042929935166739, -2.808917465908714, 0.5000178451051316),
    (3.8916678022926607, -2.772484153217685, 0.5060648178503393),
    (3.285753657755655, -2.3681294933425376, 0.46449024233003106),
    (2.3465413258596377, -1.7097828382687081, 0.42323551169305323),
)
SAFETY = 1.02
MATCHED_RMS = 0.2  # of an update's elements: AdamW's usual size, so that one learning rate serves both
TOGETHER = 2**27  # elements of the matrices that are computed at a time: bounds the memory of large models


class Muon(torch.optim.Optimizer):
    """Muon on hidden matrices and AdamW, over one list of groups and one state, as Lightning and checkpoints expect."""

    def __init__(
        self,
        params: list[dict[str, Any]],
        lr: float,
        momentum: float,
        betas: tuple[float, float],
        eps: float,
        fused: bool = False,
        momentum_start: float | None = None,
        momentum_warmup: int = 0,
        row_beta: float | None = None,
    ) -> None:
        matrices = [
            {key: value for key, value in group.items() if key != HIDDEN_MATRICES}
            for group in params
            if group.get(HIDDEN_MATRICES)
        ]
        others = [group for group in params if not group.get(HIDDEN_MATRICES)]
        adamw = torch.optim.AdamW(others, lr=lr, betas=betas, eps=eps, fused=fused)
        self._parts: tuple[torch.optim.Optimizer, ...] = (adamw,)
        if matrices:
            start = momentum if momentum_start is None else momentum_start
            muon = MatrixMuon(
                matrices,
                lr=lr,
                momentum=momentum,
                momentum_start=start,
                momentum_warmup=momentum_warmup,
                row_beta=row_beta,
            )
            self._parts = (muon, adamw)
        self._counts = [len(part.param_groups) for part in self._parts]
        super().__init__([group for part in self._parts for group in part.param_groups], {})
        self._share()

    def _share(self) -> None:
        """Make the parts work on this optimizer's own groups and state, not on copies."""
        groups = iter(self.param_groups)
        for part, count in zip(self._parts, self._counts, strict=True):
            part.param_groups = [next(groups) for _ in range(count)]
            part.state = self.state

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        super().load_state_dict(state_dict)
        self._share()
        for group in self.param_groups:
            if "momentum_warmup" in group:  # the matrices': a checkpoint may be from before row_beta
                group.setdefault("row_beta", None)

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for part in self._parts:
            part.step()
        return loss


class MatrixMuon(torch.optim.Optimizer):
    """Muon with Nesterov momentum, which may rise over the first steps, and decoupled decay.

    An update has the root mean square of AdamW's. With `row_beta` it is NorMuon (Li et al. 2025, arXiv 2510.05491): rows of an
    update are divided by the root of their mean square over steps, and the whole keeps its norm.
    """

    def __init__(
        self,
        params: Iterable[Any],
        lr: float,
        momentum: float,
        momentum_start: float,
        momentum_warmup: int,
        row_beta: float | None,
    ) -> None:
        defaults = {"momentum": momentum, "momentum_start": momentum_start, "momentum_warmup": momentum_warmup}
        super().__init__(params, {"lr": lr, "weight_decay": 0.0, **defaults, "row_beta": row_beta})

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        assert closure is None
        for group in self.param_groups:
            for alike in _by_shape(group["params"]):
                directions = orthogonal_parts(alike, self._directions(group, alike))
                if group["row_beta"] is not None:
                    directions = directions * self._row_scales(group["row_beta"], alike, directions)
                local = [_local(parameter) for parameter in alike]
                rows, columns = alike[0].shape[-2:]
                size = group["lr"] * MATCHED_RMS * math.sqrt(max(rows, columns))
                torch._foreach_mul_(local, 1.0 - group["lr"] * group["weight_decay"])
                torch._foreach_add_(local, list(directions), alpha=-size)
        return None

    def _directions(self, group: dict[str, Any], parameters: list[nn.Parameter]) -> tuple[Tensor, ...]:
        """Update the momenta and return what is made orthogonal: this rank's parts."""
        states = [self.state[parameter] for parameter in parameters]
        for state, parameter in zip(states, parameters, strict=True):
            if "momentum_buffer" not in state:
                state["momentum_buffer"] = torch.zeros_like(parameter, memory_format=torch.preserve_format)
            if "step" not in state:
                state["step"] = torch.zeros(())  # on the CPU: reading it does not wait for a GPU
        grads = [_local(parameter.grad) for parameter in parameters]
        momenta = [_local(state["momentum_buffer"]) for state in states]
        factor = momentum_at(group, int(states[0]["step"]))
        torch._foreach_add_([state["step"] for state in states], 1)
        torch._foreach_lerp_(momenta, grads, 1.0 - factor)
        return torch._foreach_lerp(grads, momenta, factor)

    def _row_scales(self, beta: float, parameters: list[nn.Parameter], directions: Tensor) -> Tensor:
        """Update each row's mean square and return by what NorMuon multiplies the rows: this rank's parts."""
        states = [self.state[parameter] for parameter in parameters]
        for state, parameter in zip(states, parameters, strict=True):
            if "row_squares" not in state:
                state["row_squares"] = zeros_by_row(parameter, torch.float32)
        first = parameters[0]
        squares = torch.linalg.vector_norm(directions, dim=-1, keepdim=True, dtype=torch.float32).square()
        squares = _sum_over(first, first.ndim - 1, squares) / first.shape[-1]
        means = [_local(state["row_squares"]) for state in states]
        torch._foreach_lerp_(means, list(squares), 1.0 - beta)
        seen = 1.0 - beta ** int(states[0]["step"])
        scales = 1.0 / ((torch.stack(means) / seen).sqrt() + 1e-8)
        norms = torch.stack((squares, squares * scales.square())).sum(-2, keepdim=True)
        before, after = _sum_over(first, first.ndim - 2, norms)
        return scales * (before / after.clamp(min=1e-30)).sqrt()


def _sum_over(parameter: Any, dimension: int, values: Tensor) -> Tensor:
    """Return the sum of values over the ranks that hold parts of a dimension of the parameter."""
    if isinstance(parameter, DTensor):
        for axis, placement in enumerate(parameter.placements):
            if getattr(placement, "dim", None) == dimension:
                dist.all_reduce(values, group=parameter.device_mesh.get_group(axis))
    return values


def momentum_at(group: dict[str, Any], step: int) -> float:
    """Return the momentum of optimizer step `step` (from 0): a line from `momentum_start` over `momentum_warmup` steps."""
    risen = min(1.0, step / group["momentum_warmup"]) if group["momentum_warmup"] else 1.0
    return group["momentum_start"] + (group["momentum"] - group["momentum_start"]) * risen


def _by_shape(parameters: Iterable[nn.Parameter]) -> Iterator[list[nn.Parameter]]:
    """Yield the parameters that have gradients, those of one shape and placement together."""
    alike: dict[Any, list[nn.Parameter]] = {}
    for parameter in parameters:
        if parameter.grad is not None:
            placed = (parameter.device_mesh, parameter.placements) if isinstance(parameter, DTensor) else None
            alike.setdefault((parameter.shape, placed), []).append(parameter)
    for same in alike.values():
        count = max(1, TOGETHER // same[0].numel())
        yield from (same[start : start + count] for start in range(0, len(same), count))


def _local(tensor: Any) -> Tensor:
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def orthogonal_parts(parameters: list[nn.Parameter], parts: Sequence[Tensor]) -> Tensor:
    """Return this rank's parts of the orthogonal matrices, one after the other, given its parts of the matrices."""
    first: Any = parameters[0]
    if not isinstance(first, DTensor) or all(placement.is_replicate() for placement in first.placements):
        return orthogonal(_stacked(parts))
    divided = [axis for axis, placement in enumerate(first.placements) if not placement.is_replicate()]
    if first.ndim == 3 and all(getattr(first.placements[axis], "dim", None) == 0 for axis in divided):
        return orthogonal(_stacked(parts))  # a matrix for each expert: ranks hold whole ones
    if first.ndim == 2 and len(divided) == 1 and first.placements[divided[0]].is_shard(0):
        mesh = first.device_mesh
        axis = divided[0]
        return _shared(parts, len(first), mesh.get_group(axis), mesh.size(axis), mesh.get_local_rank(axis))
    # Tensor parallelism divides columns, or rows a second time: each matrix is gathered and computed on every rank.
    whole = [
        DTensor.from_local(
            part.bfloat16(),
            first.device_mesh,
            first.placements,
            run_check=False,
            shape=first.shape,
            stride=first.stride(),
        ).full_tensor()
        for part in parts
    ]
    return torch.stack([local_part_of(first, each) for each in orthogonal(torch.stack(whole))])


def _stacked(parts: Sequence[Tensor]) -> Tensor:
    """Return the matrices as one tensor in bf16, the precision in which they are made orthogonal."""
    stacked = torch.empty(len(parts), *parts[0].shape, dtype=torch.bfloat16, device=parts[0].device)
    torch._foreach_copy_(list(stacked), list(parts))
    return stacked


def _shared(parts: Sequence[Tensor], height: int, group: Any, ranks: int, rank: int) -> Tensor:
    """Make matrices orthogonal that `ranks` ranks hold by rows: rank r computes every matrix whose number is r modulo `ranks`.

    A rank sends its rows of each matrix to the owner, and gets its rows of the result back: for n ranks 2/n of what gathering all
    matrices would send.
    """
    width = parts[0].shape[1]
    each = -(-height // ranks)
    heights = [min(each, max(0, height - each * number)) for number in range(ranks)]
    owned = [len(range(number, len(parts), ranks)) for number in range(ranks)]  # matrices of each rank
    order = [index for owner in range(ranks) for index in range(owner, len(parts), ranks)]
    sent = torch.stack([parts[index] for index in order]).bfloat16()
    sizes_by_owner = [count * heights[rank] * width for count in owned]
    sizes_by_rank = [owned[rank] * rows * width for rows in heights]
    received = _exchange(sent.flatten(), sizes_by_owner, sizes_by_rank, group)
    pieces = [
        piece.view(owned[rank], rows, width) for piece, rows in zip(received.split(sizes_by_rank), heights, strict=True)
    ]
    whole = torch.cat(pieces, dim=1)
    made = orthogonal(whole) if owned[rank] else whole
    back = torch.cat([piece.flatten() for piece in made.split(heights, dim=1)])
    mine = _exchange(back, sizes_by_rank, sizes_by_owner, group).view(len(parts), heights[rank], width)
    return mine[torch.tensor(order, device=mine.device).argsort()]


def _exchange(sent: Tensor, send: list[int], receive: list[int], group: Any) -> Tensor:
    """Send and receive so many elements to and from each rank, as bytes: not every backend takes bf16."""
    width = sent.element_size()
    received = sent.new_empty(sum(receive))
    dist.all_to_all_single(
        received.view(torch.uint8),
        sent.contiguous().view(torch.uint8),
        [count * width for count in receive],
        [count * width for count in send],
        group=group,
    )
    return received


def orthogonal(matrices: Tensor) -> Tensor:
    """Return the nearest orthogonal matrix to each, in bf16 and approximately: singular values within 15% of 1.

    The last two dimensions are those of a matrix.
    """
    matrices_nrc = matrices.flatten(0, -3)
    if not len(matrices_nrc):
        return matrices.bfloat16()
    tall = matrices_nrc.shape[1] > matrices_nrc.shape[2]
    x = matrices_nrc.bfloat16()
    norm = torch.linalg.vector_norm(x, dim=(1, 2), keepdim=True, dtype=torch.float32)
    x = x / (norm * SAFETY + 1e-6).to(x.dtype)
    for a, b, c in POLAR_EXPRESS:
        gram = x.mT @ x if tall else x @ x.mT  # of the shorter side; what it multiplies stays in its layout
        factor = torch.baddbmm(gram, gram, gram, beta=b, alpha=c)
        x = torch.baddbmm(x, x, factor, beta=a) if tall else torch.baddbmm(x, factor, x, beta=a)
    return x.reshape(matrices.shape)
