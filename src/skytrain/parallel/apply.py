"""The one place where a single-device model becomes parallel, in one order."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, OffloadPolicy, fully_shard

from ..config import ConfigError
from ..models import Decoder, Kernels, Recompute, check_tensor_degree, fuse, run_block, tensor_plan
from .context import Context, spread_context
from .pipeline import cut_stages
from .state import tied_names
from .tensor import divide_tensors


@dataclass(frozen=True)
class Settings:
    """How a mesh is used, beside its degrees."""

    sequence_length: int  # of whole sequences
    micro_batch: int  # sequences that go through the model together
    schedule: str = "1f1b"
    micro_batches: int = 1  # that one run of the pipeline takes
    context: int = 1  # ranks that share each sequence
    context_method: str = "ring"
    dtype: torch.dtype = torch.float32  # of the arithmetic; parameters and gradients are kept in float32
    reduce_once: bool = True
    recompute: Recompute = "none"  # what blocks compute again in the backward pass
    compile_blocks: bool = False
    cpu_offload: bool = False
    kernels: Kernels | None = None  # fused ones, in place of compiled blocks

    @property
    def part_length(self) -> int:
        """The tokens of a sequence that go through one rank."""
        return self.sequence_length // self.context


def parallelize(
    model: nn.Module, mesh: DeviceMesh, settings: Settings, context: Context | None = None
) -> list[nn.Module]:
    """The parts of `model` that this rank runs: the model itself, or its pipeline stages.

    The order is not free. Stages first, since everything else is done to what a rank holds. Tensor parallelism replaces
    weights, so it comes before anything keeps them. Attention is spread over the context's ranks inside of what is then
    recomputed. Recomputing wraps what compiling then sees whole. Sharding is last: its hooks gather the weights of a block
    around all of that, and stay outside the compiled code.
    """
    plan = tensor_plan(model)
    pipelined = mesh["pipeline"].size() > 1
    parts: list[nn.Module] = cut_stages(model, mesh["pipeline"], settings) if pipelined else [model]
    for part in parts:
        if mesh["tensor"].size() > 1:
            if plan is None:
                raise ConfigError(
                    "parallel.tensor", f"{type(model).__name__} has no tensor plan", hint="use parallel=fsdp"
                )
            check_tensor_degree(part, mesh["tensor"].size())
            tied = tied_names(part)
            divide_tensors(part, plan, mesh["tensor"])
            tie(part, tied)
        if context is not None:
            spread_context(part, context)
        recompute(blocks_of(part), settings.recompute)
        if settings.kernels is not None:
            assert isinstance(part, Decoder), "fused kernels are for the whole built-in decoder"
            fuse(part, settings.kernels, settings.dtype)
        elif settings.compile_blocks:
            compile_blocks(part)
        shard(part, mesh, settings, reshard=not pipelined)
    return parts


def tie(part: nn.Module, tied: Mapping[str, str]) -> None:
    """Makes each second name of a parameter mean the first again: dividing has given them separate storage."""
    for again, first in tied.items():
        owner, _, leaf = again.rpartition(".")
        setattr(part.get_submodule(owner), leaf, part.get_parameter(first))


def blocks_of(model: nn.Module) -> list[nn.Module]:
    """The repeated layers: `blocks` where the model offers them, else its longest list of modules (Hugging Face's `layers` or `h`)."""
    own = getattr(model, "blocks", None)
    if isinstance(own, nn.ModuleDict):
        return list(own.values())
    lists = [list(module) for module in model.modules() if isinstance(module, nn.ModuleList)]
    return max(lists, key=len, default=[])


def recompute(blocks: Iterable[nn.Module], how: Recompute) -> None:
    """Replaces `forward` rather than wrapping the module, so that parameters keep their names."""
    if how != "none":
        for block in blocks:
            block.forward = functools.partial(run_block, block.forward, how)


def compile_blocks(part: nn.Module) -> None:
    """Each block on its own: they share one compiled code, and nothing of the sharding hooks is traced.

    `forward` is replaced rather than the module wrapped, so that parameters keep their names.
    """
    ends = [module for name in ("embedding", "head") if (module := getattr(part, name, None)) is not None]
    for module in [*blocks_of(part), *ends]:
        module.forward = torch.compile(module.forward, dynamic=False)


def shard(part: nn.Module, mesh: DeviceMesh, settings: Settings, *, reshard: bool) -> None:
    """FSDP2 over each block and over the rest, HSDP where there are replicas; over a single rank too.

    So there is one path for precision, accumulation and clipping. Ranks that share sequences have the same weights too, so
    they are among those that divide them: the mesh's shard dimension holds both. In a pipeline a block stays gathered from its first
    forward to its last backward pass of a step: it would otherwise be gathered for each micro-batch.
    """
    over = mesh["replicate", "shard"] if mesh["replicate"].size() > 1 else mesh["shard"]
    reduced = None if settings.dtype == torch.float32 else settings.dtype
    # Inputs are not cast: a block is given its rotation in float32 and needs it so.
    precision = MixedPrecisionPolicy(param_dtype=reduced, reduce_dtype=torch.float32, cast_forward_inputs=False)
    offload = CPUOffloadPolicy() if settings.cpu_offload else OffloadPolicy()
    for block in blocks_of(part):
        fully_shard(block, mesh=over, mp_policy=precision, offload_policy=offload, reshard_after_forward=reshard)
    # Embedding and head form one group, since they may share a weight.
    # They stay gathered until the backward pass, which begins with them.
    fully_shard(part, mesh=over, mp_policy=precision, offload_policy=offload, reshard_after_forward=False)
