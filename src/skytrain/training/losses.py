"""Which loss runs: fused kernels, torch.compile or plain torch.

`choose_loss` decides it, for one device and for a mesh.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import nn

from ..config import (
    KERNEL_RULES,
    Config,
    DecoderConfig,
    Device,
    Mesh,
    Setup,
    check_setup,
    fused_problem,
    has_layers,
    uses_process_group,
)
from ..models import (
    Backend,
    Kernels,
    WithAuxiliary,
    cublaslt_available,
    fused_loss,
    kernels_available,
    lm_loss,
    split_auxiliary,
)
from ..parallel import use_fp8
from .graphs import GraphedLoss

ALONE = Mesh()
GRAPHED_TOKENS = 32 * 1024  # largest such micro-batch: on an H200, 8 sequences of 1024 run twice as fast, 64 the same
LARGEST_CUDNN_HEAD = 128  # on every GPU from Hopper on: 256 needs an H100 or H200
FLASH_HEADS = (*range(8, 193, 8), 256)  # of which flash computes gradients on every GPU
# The loss of a model over tokens and targets, and where documents begin if they are separated.
Loss = Callable[[nn.Module, torch.Tensor, torch.Tensor, torch.Tensor | None], WithAuxiliary]


@dataclass(frozen=True)
class LossPath:
    """The way in which a run computes its loss.

    `loss` computes it for a model that is whole on one device, in DDP and in a DeepSpeed engine. A mesh strategy
    holds the model in parts and runs them itself, in the same way: with `kernels` where it is fused, else compiled by
    block or eager.
    """

    kind: Literal["fused", "compiled", "eager"]
    label: str  # description for people
    loss: Loss
    kernels: Kernels | None = None  # those of the fused path

    @property
    def lowers_precision(self) -> bool:
        """Whether the path computes in bf16 by itself; the others do under autocast."""
        return self.kind == "fused"


def choose_loss(config: Config, device: str, mesh: Mesh = ALONE) -> LossPath:
    """Return the fastest path that can compute this model's loss here, or the one that the settings ask for."""
    setup = Setup(config, mesh, device=find_device(device))
    check_setup(setup, KERNEL_RULES)
    reason = fused_problem(setup)
    if config.trainer.fused == "off" or reason:
        unasked = bool(reason) and config.trainer.fused == "auto" and device == "cuda"
        why = f" (fused kernels do not support {reason})" if unasked else ""
        if config.trainer.compile:
            return LossPath("compiled", "torch.compile" + why, torch.compile(lm_loss, dynamic=False))
        return LossPath("eager", "plain torch" + why, lm_loss)
    switches = config.trainer.kernels
    model = config.model
    assert has_layers(model)
    lt = cublaslt_available() and _aligned(model)
    kernels = Kernels(
        attention=attention_kernel(switches.attention, config.trainer.deterministic, model.head_width),
        loss=switches.loss,
        gelu=switches.gelu,
        norm=switches.norm,
        products=switches.products and lt,
        epilogue=switches.epilogue and lt and torch.cuda.get_device_capability() >= (9, 0),
        fp32_residual=switches.residual == "fp32",
    )
    graphs = not uses_process_group(config) and _wants_graphs(config) and _same_kernels(config)
    on = [name for name in ("loss", "gelu", "norm", "products", "epilogue") if getattr(kernels, name)]
    with_graphs = ", CUDA graphs" if graphs else ""
    label = f"fused kernels ({', '.join(on) or 'none'}), {kernels.attention} attention{with_graphs}"
    return LossPath("fused", label, FusedLoss(kernels, graphs), kernels)


class FusedLoss:
    """The loss of one model through the fused kernels, replayed from CUDA graphs where `graphs`."""

    def __init__(self, kernels: Kernels, graphs: bool) -> None:
        self._kernels = kernels
        self._graphs = graphs
        self._graphed: GraphedLoss | None = None

    def __call__(
        self,
        model: Any,
        tokens: torch.Tensor,
        targets: torch.Tensor,
        document_starts: torch.Tensor | None = None,
    ) -> WithAuxiliary:
        # The path lowers precision itself; autocast on top would cast again.
        with torch.autocast("cuda", enabled=False):
            if not (self._graphs and torch.is_grad_enabled()):
                return fused_loss(model, tokens, targets, self._kernels, document_starts_bt=document_starts)
            if self._graphed is None:

                def compute(tokens: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
                    loss, auxiliary = split_auxiliary(fused_loss(model, tokens, targets, self._kernels))
                    assert auxiliary is None, "a mixture of experts is not recorded as a graph"
                    return loss

                self._graphed = GraphedLoss(compute, model)
            return self._graphed(tokens, targets)


def find_device(kind: str) -> Device:
    """Return the facts about the device that the capability rules use."""
    if kind != "cuda":
        return Device("cpu")
    kernels = kernels_available(torch.device(kind))
    return Device("cuda", torch.cuda.get_device_name(), torch.cuda.get_device_capability(), kernels)


def _aligned(model: DecoderConfig) -> bool:
    """Return whether cuBLASLt's kernels accept the model's sizes: rows must start at multiples of 16 bytes."""
    packed = (model.heads + 2 * model.groups) * model.head_width
    experts = [] if model.experts is None else [model.experts.width, model.experts.shared_width or 0]
    return not any(size % 8 for size in (model.width, model.hidden_width, model.padded_vocab, packed, *experts))


def _wants_graphs(config: Config) -> bool:
    """Return whether to use CUDA graphs, as configured or because micro-batches are small.

    With small ones the host cannot launch kernels as fast as the device runs them.
    """
    tokens = config.trainer.micro_sequences * config.trainer.sequence_length
    asked = config.trainer.cuda_graphs
    return asked == "on" or (asked == "auto" and tokens <= GRAPHED_TOKENS)


def _same_kernels(config: Config) -> bool:
    """Return whether every step launches the same kernels, with nothing in between that a replayed graph would not do.

    Masks of documents, windows and capped scores are made anew in each pass, and routers count their loads.
    """
    model = config.model
    assert has_layers(model)
    masks = config.loader.separate_documents or model.window is not None or model.attention_softcap is not None
    return not masks and model.experts is None


def apply_fp8(config: Config, device: str, model: nn.Module, mesh: Mesh = ALONE) -> None:
    """Compute the blocks' matrix products in fp8 where `trainer.fp8` asks for it; raise where it cannot."""
    scaling = config.trainer.fp8
    if scaling == "off":
        return
    check_setup(Setup(config, mesh, device=find_device(device)), KERNEL_RULES)
    use_fp8(model, scaling)


def attention_kernel(asked: Literal["auto", "cudnn", "flash", "sdpa"], deterministic: bool, head_size: int) -> Backend:
    """Return the attention kernel for this GPU: cuDNN's is the fastest measured on Hopper, torch's flash kernel on older GPUs.

    Deterministic runs use flash too: it can accumulate gradients in a fixed order. So do heads that cuDNN serves on some
    GPUs only. Heads that flash does not serve are left to torch's own choice.
    """
    if asked != "auto":
        return asked
    if head_size not in FLASH_HEADS:
        return "sdpa"
    hopper = torch.cuda.get_device_capability() >= (9, 0)
    return "cudnn" if hopper and head_size <= LARGEST_CUDNN_HEAD and not deterministic else "flash"
