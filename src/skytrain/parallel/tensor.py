"""Tensor parallelism by a model's plan (`model.tensor_plan`): what each word of the plan does to a module.

columns     a linear layer sharded by outputs; takes the whole sequence, returns this rank's outputs
rows        a linear layer sharded by inputs; takes this rank's inputs, returns the sum, scattered over the sequence
vocabulary  an embedding sharded by rows; takes and returns whole sequences
logits      the last linear layer sharded by outputs; takes a part of the sequence, returns sharded logits
sequence    a layer over features, with replicated weights, on this rank's part of the sequence
heads       a norm within each head, on this rank's heads
rows whole, columns whole   as above, but the output is replicated on every rank
gather      the module's first input is gathered to the whole sequence
divide      the module's output is scattered: each rank keeps its part of the sequence
"""

from __future__ import annotations

import fnmatch
from collections.abc import Callable
from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    ParallelStyle,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)

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


STYLES: dict[str, Callable[[], ParallelStyle]] = {
    "columns": lambda: ColwiseParallel(),
    "rows": lambda: RowwiseParallel(output_layouts=SEQUENCE),
    "columns whole": lambda: ColwiseParallel(output_layouts=Replicate()),
    "rows whole": lambda: RowwiseParallel(output_layouts=Replicate()),
    "vocabulary": lambda: RowwiseParallel(input_layouts=Replicate(), output_layouts=Replicate()),
    "logits": lambda: ColwiseParallel(input_layouts=SEQUENCE, output_layouts=Shard(-1), use_local_output=False),
    "sequence": lambda: SequenceParallel(use_local_output=True),
    "heads": lambda: SequenceParallel(sequence_dim=2, use_local_output=True),
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
