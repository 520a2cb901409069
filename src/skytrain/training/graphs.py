"""A micro-batch as two CUDA graphs, forward and backward: the host launches hundreds of kernels with two calls."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

Loss = Callable[[Tensor, Tensor], Tensor]
WARM_RUNS = 2  # runs that compile kernels and tune matrix products before the capture, which can do neither


class GraphedLoss:
    """The mean loss of a micro-batch, recorded at the first call and replayed for batches of the same shape.

    Gradients are accumulated in fixed buffers. After `zero_grad` has dropped them from the parameters, the next
    backward pass zeroes them and assigns them again.
    """

    def __init__(self, compute: Loss, model: nn.Module) -> None:
        self._compute = compute
        self._model = model
        self._parameters = list(model.parameters())
        self._gradients: list[Tensor] = []
        self._anchor = torch.zeros(
            (), requires_grad=True
        )  # autograd calls backward only for an input that needs a gradient

    def __call__(self, tokens_bt: Tensor, targets_bt: Tensor) -> Tensor:
        if not self._gradients:
            with stand_ins(self._model) as leaves:
                self._record(tokens_bt, targets_bt, leaves)
        if tokens_bt.shape != self._tokens.shape:
            return self._compute(tokens_bt, targets_bt)
        return _Replay.apply(self._anchor, self, tokens_bt, targets_bt)

    def _record(self, tokens_bt: Tensor, targets_bt: Tensor, leaves: list[nn.Parameter]) -> None:
        self._tokens, self._targets = tokens_bt.clone(), targets_bt.clone()
        self._dloss = torch.ones((), device=tokens_bt.device)
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(WARM_RUNS):
                self._compute(self._tokens, self._targets).backward()
        torch.cuda.current_stream().wait_stream(stream)
        gradients = [torch.zeros_like(leaf) for leaf in leaves]
        for leaf, buffer in zip(leaves, gradients, strict=True):
            leaf.grad = buffer
        self._forward, self._backward = torch.cuda.CUDAGraph(), torch.cuda.CUDAGraph()
        # Other threads may use the device meanwhile, such as a loader that pins memory.
        with torch.cuda.graph(self._forward, stream=stream, capture_error_mode="thread_local"):
            loss = self._compute(self._tokens, self._targets)
        pool = self._forward.pool()
        with torch.cuda.graph(self._backward, pool=pool, stream=stream, capture_error_mode="thread_local"):
            loss.backward(self._dloss)
        self._loss = loss.detach()
        self._gradients = gradients

    def forward(self, tokens_bt: Tensor, targets_bt: Tensor) -> Tensor:
        self._tokens.copy_(tokens_bt)
        self._targets.copy_(targets_bt)
        self._forward.replay()
        return self._loss.clone()

    def backward(self, dloss: Tensor) -> None:
        self._dloss.copy_(dloss)
        if any(p.grad is not buffer for p, buffer in zip(self._parameters, self._gradients, strict=True)):
            self._reassign_gradients()
        self._backward.replay()

    def _reassign_gradients(self) -> None:
        torch._foreach_zero_(self._gradients)
        for parameter, buffer in zip(self._parameters, self._gradients, strict=True):
            if parameter.grad is not None:
                buffer.copy_(parameter.grad)
            parameter.grad = buffer


class _Replay(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, anchor: Tensor, graphed: GraphedLoss, tokens_bt: Tensor, targets_bt: Tensor) -> Tensor:
        ctx.graphed = graphed
        return graphed.forward(tokens_bt, targets_bt)

    @staticmethod
    def backward(ctx: Any, dloss: Tensor) -> tuple[Any, ...]:
        ctx.graphed.backward(dloss)
        return None, None, None, None


@contextmanager
def stand_ins(model: nn.Module) -> Iterator[list[nn.Parameter]]:
    """Replace a model's parameters with new leaves that share their memory, in the order of `model.parameters()`.

    A parameter that an earlier loss still refers to has an autograd node on the stream of that loss, which a capture on
    another stream must not use; a new leaf has none.
    """
    leaves = {id(parameter): nn.Parameter(parameter.detach()) for parameter in model.parameters()}
    places = [
        (module, name, parameter)
        for module in model.modules()
        for name, parameter in module._parameters.items()
        if parameter is not None
    ]
    try:
        for module, name, parameter in places:
            module._parameters[name] = leaves[id(parameter)]
        yield list(leaves.values())
    finally:
        for module, name, parameter in places:
            module._parameters[name] = parameter
