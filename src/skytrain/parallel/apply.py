"""Make a single-device model parallel: the one place for it, in one order.

Everything that replaces a part of a model is here: its attention, its blocks' forward passes, its linear layers.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, OffloadPolicy, fully_shard
from torch.distributed.tensor import DTensor, Shard

from ..config import ConfigError
from ..models import (
    Attention,
    Fp8Linear,
    FusedStream,
    Kernels,
    Recompute,
    Scaling,
    fused_block,
    fused_loss,
    run_block,
)
from .context import Context, attend_across
from .experts import count_over, expert_mesh, replicate_mixtures, spread_experts
from .pipeline import cut_stages
from .state import tied_names
from .tensor import divide_tensors


@dataclass(frozen=True)
class Settings:
    """The settings of a mesh, apart from its degrees."""

    sequence_length: int  # of whole sequences
    micro_batch: int  # sequences that go through the model together
    schedule: str = "1f1b"
    chunks: int = 1  # stages of a rank of the pipeline
    micro_batches: int = 1  # in one run of the pipeline
    context: int = 1  # ranks that share each sequence
    context_method: str = "ring"
    dtype: torch.dtype = torch.float32  # of the computation; parameters and gradients stay in float32
    reduce_once: bool = True
    recompute: Recompute = "none"  # what blocks recompute in the backward pass
    compile_blocks: bool = False
    cpu_offload: bool = False
    expert: int = 1  # ranks that divide the experts of each layer
    kernels: Kernels | None = None  # fused kernels, instead of compiled blocks

    @property
    def part_length(self) -> int:
        """The tokens of a sequence on one rank."""
        return self.sequence_length // self.context


def parallelize(
    model: nn.Module, mesh: DeviceMesh, settings: Settings, context: Context | None = None
) -> list[nn.Module]:
    """Return the parts of `model` that this rank runs: the model itself, or its pipeline stages.

    The order matters. Stages come first, since everything else applies to what a rank holds. Tensor parallelism replaces
    weights, so it comes before anything refers to them. Context parallelism changes attention inside the blocks that
    activation checkpointing then wraps, and compilation sees the result. Sharding is last: its hooks gather a block's
    weights around all of that, outside the compiled code.
    """
    plan = getattr(model, "tensor_plan", None)
    pipelined = mesh["pipeline"].size() > 1
    parts: list[nn.Module] = cut_stages(model, mesh["pipeline"], settings) if pipelined else [model]
    for part in parts:
        if mesh["tensor"].size() > 1:
            if plan is None:
                raise ConfigError(
                    "parallel.tensor", f"{type(model).__name__} has no tensor plan", hint="use parallel=fsdp"
                )
            tied = tied_names(part)
            divide_tensors(part, plan, mesh["tensor"])
            tie(part, tied)
        experts = expert_mesh(mesh, settings.expert) if settings.expert > 1 else None
        if experts is not None:
            spread_experts(part, experts)
        if mesh["tensor"].size() > 1:
            replicate_mixtures(part, mesh["tensor"])
        if context is not None:
            spread_context(part, context)
        count_over(part, sequence_groups(mesh, context))
        recompute(blocks_of(part), settings.recompute)
        if settings.kernels is not None:
            fuse(part, settings.kernels, settings.dtype)
        elif settings.compile_blocks:
            compile_blocks(part)
        shard(part, mesh, settings, experts, reshard=not pipelined)
    return parts


def sequence_groups(mesh: DeviceMesh, context: Context | None) -> list[dist.ProcessGroup]:
    """Return the groups of ranks that hold parts of the same sequences where blocks compute."""
    groups = [] if context is None else [context.group]
    return [*groups, mesh["tensor"].get_group()] if mesh["tensor"].size() > 1 else groups


def spread_context(part: nn.Module, context: Context) -> None:
    """Set the positions that a decoder, or a stage of one, holds, and make its attention reach the whole sequence."""
    part.positions = context.positions  # type: ignore[assignment]
    for module in part.modules():
        if isinstance(module, Attention):
            module.attend = _attend_across(module, context)  # type: ignore[method-assign]


def _attend_across(attention: Attention, context: Context) -> Callable[..., torch.Tensor]:
    alone, scale = attention.attend, attention.scale

    # Communication stays outside compiled code.
    @torch.compiler.disable
    def attend(q_bhtq: torch.Tensor, k_bgtq: torch.Tensor, v_bgtq: torch.Tensor, documents: Any = None) -> torch.Tensor:
        assert documents is None, "separate documents are not supported across ranks"
        return attend_across(alone, q_bhtq, k_bgtq, v_bgtq, context, scale)

    return attend


def fuse(part: nn.Module, kernels: Kernels, dtype: torch.dtype) -> None:
    """Make `part(tokens, targets)` the fused loss and `part(tokens, None)` its logits.

    Blocks are still called as modules, so that FSDP can gather the weights of one block at a time. A block's last bias is
    used by the next block, so it is copied.
    """
    model: Any = part

    def forward(block: Any, *args: Any) -> FusedStream:
        x, branch, bias, auxiliary = fused_block(block, *args)
        return x, branch, None if bias is None else bias.clone(), auxiliary

    for block in blocks_of(part):
        block.forward = functools.partial(forward, block)
    part.forward = functools.partial(
        fused_loss, model, kernels=kernels, dtype=dtype, run=lambda block, *args: block(*args)
    )


def use_fp8(model: nn.Module, scaling: Scaling) -> None:
    """Make the blocks' linear layers multiply in fp8. Embedding, head, names and parameters do not change."""
    for block in blocks_of(model):
        for module in block.modules():
            if type(module) is nn.Linear:
                module.__class__ = Fp8Linear
                module.scaling = scaling  # type: ignore[assignment]


def tie(part: nn.Module, tied: Mapping[str, str]) -> None:
    """Tie each second name of a parameter to the first again: sharding has given them separate storage."""
    for again, first in tied.items():
        owner, _, leaf = again.rpartition(".")
        setattr(part.get_submodule(owner), leaf, part.get_parameter(first))


def blocks_of(model: nn.Module) -> list[nn.Module]:
    """Return the repeated layers: the model's `blocks`, or else its longest list of modules (Hugging Face's `layers`)."""
    own = getattr(model, "blocks", None)
    if isinstance(own, nn.ModuleDict):
        return list(own.values())
    lists = [list(module) for module in model.modules() if isinstance(module, nn.ModuleList)]
    return max(lists, key=len, default=[])


def recompute(blocks: Iterable[nn.Module], how: Recompute) -> None:
    """Add activation checkpointing. It replaces `forward`, so that parameters keep their names."""
    if how != "none":
        for block in blocks:
            block.forward = functools.partial(run_block, block.forward, how)


def compile_blocks(part: nn.Module) -> None:
    """Compile each block separately: they share the compiled code, and the sharding hooks are not traced.

    `forward` is replaced and the module not wrapped, so that parameters keep their names.
    """
    ends = [module for name in ("embedding", "head") if (module := getattr(part, name, None)) is not None]
    for module in [*blocks_of(part), *ends]:
        module.forward = torch.compile(module.forward, dynamic=False)


def shard(
    part: nn.Module, mesh: DeviceMesh, settings: Settings, experts: DeviceMesh | None = None, *, reshard: bool
) -> None:
    """Apply FSDP2 to each block and to the rest, HSDP with replicas; for a single rank too.

    So there is one path for precision, accumulation and clipping. Ranks that share sequences hold the same weights and
    shard them too: the mesh's shard dimension includes both. In a pipeline a block stays gathered from its first forward to
    its last backward pass of a step, since it would otherwise be gathered for each micro-batch.

    `experts` is the mesh with an expert dimension, if any: experts are divided over that already, so that only the ranks
    with the same experts shard them. Their gradients come from the rows of all ranks, and are divided as all others are.
    """
    replicated = mesh["replicate"].size() > 1
    over = mesh["replicate", "shard"] if replicated else mesh["shard"]
    reduced = None if settings.dtype == torch.float32 else settings.dtype
    # Inputs are not cast: a block needs its rotary embedding in float32.
    precision = MixedPrecisionPolicy(param_dtype=reduced, reduce_dtype=torch.float32, cast_forward_inputs=False)
    offload = CPUOffloadPolicy() if settings.cpu_offload else OffloadPolicy()
    for block in blocks_of(part):
        mixture = getattr(block, "mixture", None)
        if experts is not None and mixture is not None:
            same = experts["replicate", "expert_shard"] if replicated else experts["expert_shard"]
            fully_shard(
                mixture.experts,
                mesh=same,
                mp_policy=precision,
                offload_policy=offload,
                reshard_after_forward=reshard,
                shard_placement_fn=functools.partial(_within_experts, ranks=experts["expert_shard"].size()),
            )
            mixture.experts.set_gradient_divide_factor(float(over.size()))
            if experts["expert_shard"].size() > 1:
                # gloo has no reduction that divides. With a single shard torch 2.13 would then divide twice.
                mixture.experts.set_force_sum_reduction_for_comms(True)
        fully_shard(block, mesh=over, mp_policy=precision, offload_policy=offload, reshard_after_forward=reshard)
    # Embedding and head form one group, since they may share a weight.
    # They stay gathered until the backward pass, which starts with them.
    fully_shard(part, mesh=over, mp_policy=precision, offload_policy=offload, reshard_after_forward=False)


def _within_experts(parameter: nn.Parameter, *, ranks: int) -> Shard:
    """Return how ranks with the same experts shard them: by expert where there are enough, else within each matrix."""
    held = parameter.to_local().size(0) if isinstance(parameter, DTensor) else parameter.size(0)
    return Shard(0 if held % ranks == 0 else 1)
