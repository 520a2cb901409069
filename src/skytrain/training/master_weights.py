"""bf16 weights with float32 updates: the optimizer keeps a float32 copy of each weight."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn


class MasterWeights(torch.optim.Optimizer):
    """A wrapper of an optimizer that lets it update float32 copies of its parameters.

    An update smaller than a bf16 weight's last bit would be lost; it accumulates in the copy. Groups, schedule and
    checkpoints see the model's own parameters; the copies are saved in the optimizer's state as `master`.
    """

    def __init__(self, inner: torch.optim.Optimizer) -> None:
        self._inner = inner
        super().__init__([{**group, "params": list(group["params"])} for group in inner.param_groups], {})
        for group in inner.param_groups:
            group["params"] = [nn.Parameter(parameter.detach().float()) for parameter in group["params"]]

    def _pairs(self) -> Iterator[tuple[nn.Parameter, nn.Parameter]]:
        """Yield each of the model's parameters with its copy."""
        for ours, theirs in zip(self.param_groups, self._inner.param_groups, strict=True):
            yield from zip(ours["params"], theirs["params"], strict=True)

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for ours, theirs in zip(self.param_groups, self._inner.param_groups, strict=True):
            theirs["lr"] = ours["lr"]  # set by the schedule
        pairs = [(parameter, copy) for parameter, copy in self._pairs() if parameter.grad is not None]
        for _, copy in self._pairs():
            copy.grad = None
        for parameter, copy in pairs:
            assert parameter.grad is not None
            copy.grad = parameter.grad.float()
        self._inner.step()
        for parameter, copy in pairs:
            parameter.copy_(copy)
            copy.grad = None  # float32 gradients are as large as the weights, so they are kept for one step only
        return loss

    def state_dict(self) -> dict[str, Any]:
        state = self._inner.state_dict()
        copies = [copy.detach() for _, copy in self._pairs()]
        slots = {number: {**state["state"].get(number, {}), "master": copy} for number, copy in enumerate(copies)}
        return {**state, "state": slots}

    @torch.no_grad()
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        slots: dict[int, dict[str, Tensor]] = {number: dict(slot) for number, slot in state_dict["state"].items()}
        masters = {number: slot.pop("master") for number, slot in slots.items()}
        self._inner.load_state_dict({**state_dict, "state": {number: slot for number, slot in slots.items() if slot}})
        for number, (parameter, copy) in enumerate(self._pairs()):
            copy.copy_(masters[number])
            parameter.copy_(copy)
        for ours, theirs in zip(self.param_groups, self._inner.param_groups, strict=True):
            ours.update({name: value for name, value in theirs.items() if name != "params"})
