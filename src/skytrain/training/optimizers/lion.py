"""Lion, as one kernel over many tensors."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch


class Lion(torch.optim.Optimizer):
    """Lion (Chen et al. 2023, arXiv 2302.06675): the sign of an interpolated momentum, with decoupled decay."""

    def __init__(
        self, params: Iterable[Any], lr: float, betas: tuple[float, float] = (0.9, 0.99), weight_decay: float = 0.0
    ) -> None:
        super().__init__(params, {"lr": lr, "betas": betas, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            params = [parameter for parameter in group["params"] if parameter.grad is not None]
            if not params:
                continue
            grads = [parameter.grad for parameter in params]
            for parameter in params:
                if "momentum" not in self.state[parameter]:
                    zeros = torch.zeros_like(parameter, memory_format=torch.preserve_format)
                    self.state[parameter]["momentum"] = zeros
            momenta = [self.state[parameter]["momentum"] for parameter in params]
            beta1, beta2 = group["betas"]
            updates = torch._foreach_mul(momenta, beta1)
            torch._foreach_add_(updates, grads, alpha=1.0 - beta1)
            torch._foreach_sign_(updates)
            torch._foreach_mul_(params, 1.0 - group["lr"] * group["weight_decay"])
            torch._foreach_add_(params, updates, alpha=-group["lr"])
            torch._foreach_lerp_(momenta, grads, 1.0 - beta2)
        return loss
