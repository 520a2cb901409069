"""Muon and AdamW as one optimizer, on whole matrices and on matrices that ranks hold in parts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.distributed.tensor import DTensor
from torch.optim._muon import _adjust_lr, _zeropower_via_newtonschulz

from ...parallel import local_part_of
from .groups import HIDDEN_MATRICES


class Muon(torch.optim.Optimizer):
    """torch's Muon and AdamW as one optimizer, over one list of groups and one state, as Lightning and checkpoints expect."""

    def __init__(
        self,
        params: list[dict[str, Any]],
        lr: float,
        momentum: float,
        betas: tuple[float, float],
        eps: float,
        fused: bool = False,
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
            muon = MatrixMuon(matrices, lr=lr, momentum=momentum, adjust_lr_fn="match_rms_adamw")
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

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for part in self._parts:
            part.step()
        return loss


class MatrixMuon(torch.optim.Muon):
    """torch's Muon, also for matrices that ranks hold in parts.

    A step needs whole matrices: each is gathered, in the update's precision, and made orthogonal on every rank, which then
    keeps its own part. That sends as much as gathering the weights once, and computes on each rank what one device would.
    """

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        divided = [
            (group, parameter)
            for group in self.param_groups
            for parameter in group["params"]
            if isinstance(parameter, DTensor) and parameter.grad is not None
        ]
        if not divided:
            return super().step(closure)
        assert closure is None
        for group, parameter in divided:
            self._step_in_parts(group, parameter)
        return None

    def _step_in_parts(self, group: dict[str, Any], parameter: DTensor) -> None:
        grad = parameter.grad
        kept = self.state[parameter]
        assert grad is not None
        if "momentum_buffer" not in kept:
            kept["momentum_buffer"] = torch.zeros_like(grad, memory_format=torch.preserve_format)
        momentum: DTensor = kept["momentum_buffer"]
        momentum.lerp_(grad, 1 - group["momentum"])
        update: Any = grad.lerp(momentum, group["momentum"]) if group["nesterov"] else momentum
        whole = _zeropower_via_newtonschulz(
            update.full_tensor(), group["ns_coefficients"], group["ns_steps"], group["eps"]
        )
        rate = _adjust_lr(group["lr"], group["adjust_lr_fn"], parameter.shape)
        local = parameter.to_local()
        local.mul_(1 - group["lr"] * group["weight_decay"])
        local.add_(local_part_of(parameter, whole).to(local.dtype), alpha=-rate)
