"""Tensor parallelism by a model's plan (`model.tensor_plan`): what each word of the plan does to a module.

columns     a linear layer sharded by outputs; takes the whole sequence, returns this rank's outputs
rows        a linear layer sharded by inputs; takes this rank's inputs, returns the sum, scattered over the sequence
vocabulary  an embedding sharded by rows; takes and returns whole sequences
logits      the last linear layer sharded by outputs; takes a part of the sequence, returns sharded logits
sequence    a layer over features, with replicated weights, on this rank's part of the sequence
heads       a norm within each head, on this rank's heads
by heads    a module whose parameters have a row for each head; it sees this rank's rows
replicated  any module, with replicated weights, on this rank's part of the sequence
columns of parts   as columns, but it takes a part of the sequence, which is gathered
whole       the module's output, of a part of the sequence, is gathered; each rank uses it for its heads
rows whole, columns whole   as above, but the output is replicated on every rank
gather      the module's first input is gathered to the whole sequence
divide      the module's output is scattered: each rank keeps its part of the sequence
"""

from __future__ import annotations

import fnmatch
from collections.abc import Callable, Sequence
from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Partial, Placement, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    ParallelStyle,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)
from torch.nn.utils.stateless import _reparametrize_module

from ..config import SkytrainError
from ..models import TensorPlan

SEQUENCE = Shard(1)  # of (batch, sequence, features)


class Gather(ParallelStyle):
    """A style that gathers the module's first input from parts of the sequence.

    It stays a DTensor, so that the gradients of the layers that read it are reduced and scattered in one operation.
    """

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        def gather(_: nn.Module, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
            part = DTensor.from_local(inputs[0], device_mesh, [SEQUENCE], run_check=False)
            return (part.redistribute(placements=[Replicate()]), *inputs[1:])

        module.register_forward_pre_hook(gather)
        return module


class Divide(ParallelStyle):
    """A style that splits the module's output: this rank keeps its part of the sequence.

    Its dropout moves behind the split; before it, every rank would have to draw the same mask.
    """

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        dropout = getattr(module, "dropout", None)
        probability = dropout.p if isinstance(dropout, nn.Dropout) else 0.0
        if probability:
            module.dropout = nn.Identity()

        def divide(module: nn.Module, _: Any, output: Tensor) -> Tensor:
            whole = DTensor.from_local(output, device_mesh, [Replicate()], run_check=False)
            part = whole.redistribute(placements=[SEQUENCE]).to_local()
            return F.dropout(part, probability, module.training) if probability else part

        module.register_forward_hook(divide)
        return module


class Whole(ParallelStyle):
    """A style that gathers the module's output from parts of the sequence, for work that differs from rank to rank."""

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        def gather(_: nn.Module, __: Any, output: Tensor) -> Tensor:
            part = DTensor.from_local(output, device_mesh, [SEQUENCE], run_check=False)
            return part.redistribute(placements=[Replicate()]).to_local(grad_placements=[Partial()])

        module.register_forward_hook(gather)
        return module


class Held(ParallelStyle):
    """A style that distributes a module's parameters, and runs it on this rank's parts of them."""

    def __init__(self, placement: Placement) -> None:
        super().__init__()
        self.placement = placement

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        hold_locally(module, device_mesh, [self.placement])
        return module


def hold_locally(module: nn.Module, mesh: DeviceMesh, placements: Sequence[Placement]) -> None:
    """Distribute a module's parameters over a mesh, and let its forward pass see this rank's parts as plain tensors."""
    for owner in module.modules():
        for name, parameter in list(owner.named_parameters(recurse=False)):
            if not isinstance(parameter, DTensor):
                held = distribute_tensor(parameter, mesh, list(placements), src_data_rank=None)
                setattr(owner, name, nn.Parameter(held, requires_grad=parameter.requires_grad))
    own = module.forward

    def forward(*inputs: Any) -> Any:
        parts = {name: _part(parameter) for name, parameter in module.named_parameters()}
        with _reparametrize_module(module, parts):
            return own(*inputs)

    module.forward = forward


def _part(parameter: Tensor) -> Tensor:
    """Return this rank's part; ranks that hold the same one have different rows, so that its gradients are summed."""
    if not isinstance(parameter, DTensor):
        return parameter
    gradients = [Partial() if placement.is_replicate() else placement for placement in parameter.placements]
    return parameter.to_local(grad_placements=gradients)


STYLES: dict[str, Callable[[], ParallelStyle]] = {
    "columns": lambda: ColwiseParallel(),
    "rows": lambda: RowwiseParallel(output_layouts=SEQUENCE),
    "columns whole": lambda: ColwiseParallel(output_layouts=Replicate()),
    "rows whole": lambda: RowwiseParallel(output_layouts=Replicate()),
    "vocabulary": lambda: RowwiseParallel(input_layouts=Replicate(), output_layouts=Replicate()),
    "logits": lambda: ColwiseParallel(input_layouts=SEQUENCE, output_layouts=Shard(-1), use_local_output=False),
    "sequence": lambda: SequenceParallel(use_local_output=True),
    "heads": lambda: SequenceParallel(sequence_dim=2, use_local_output=True),
    "by heads": lambda: Held(Shard(0)),
    "replicated": lambda: Held(Replicate()),
    "columns of parts": lambda: ColwiseParallel(input_layouts=SEQUENCE),
    "whole": Whole,
    "gather": Gather,
    "divide": Divide,
}


def divide_tensors(part: nn.Module, plan: TensorPlan, mesh: DeviceMesh) -> None:
    """Shard the modules of a model, or of one of its stages, over a one-dimensional mesh."""
    for word in plan.values():
        if word not in STYLES:
            raise SkytrainError(f"tensor plan: {word!r} is not one of {', '.join(STYLES)}")
    found = {
        name: STYLES[word]()
        for pattern, word in plan.items()
        for name, _ in part.named_modules()
        if fnmatch.fnmatchcase(name, pattern) and name.count(".") == pattern.count(".")
    }
    parallelize_module(part, mesh, found)
