"""How the loss is computed on the device at hand: fused kernels, torch.compile, or plain torch. The choice is always said."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Literal

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
    uses_process_group,
)
from ..models import Backend, Decoder, Kernels, fused_loss, kernels_available, use_fp8
from ..models.kernels import cublaslt
from .graphs import GraphedLoss

ALONE = Mesh()
GRAPHED_TOKENS = 32 * 1024  # of a micro-batch: twice as fast with 8 sequences of 1024 on an H200, no different with 64
Loss = Callable[[nn.Module, torch.Tensor, torch.Tensor], torch.Tensor]


@dataclass(frozen=True)
class Path:
    label: str
    kernels: Kernels | None = None  # of the fused path
    compute_loss: Loss | None = None  # None: the module's own


def choose_path(config: Config, device: str, mesh: Mesh = ALONE) -> Path:
    """The fastest path that computes this model's loss here, or the one that was asked for."""
    plain = "torch.compile" if config.trainer.compile else "plain torch"
    setup = Setup(config, mesh, device=find_device(device))
    check_setup(setup, KERNEL_RULES)
    reason = fused_problem(setup)
    if config.trainer.fused == "off" or reason:
        why = (
            f" (fused kernels do not serve {reason})"
            if reason and config.trainer.fused == "auto" and device == "cuda"
            else ""
        )
        return Path(plain + why)
    switches = config.trainer.kernels
    lt = cublaslt.available() and _aligned(config.model)
    kernels = Kernels(
        attention=_attention(switches.attention, config.trainer.deterministic),
        loss=switches.loss,
        gelu=switches.gelu,
        norm=switches.norm,
        products=switches.products and lt,
        epilogue=switches.epilogue and lt and torch.cuda.get_device_capability() >= (9, 0),
        fp32_residual=switches.residual == "fp32",
    )
    graphs = not uses_process_group(config) and not config.loader.separate_documents and _wants_graphs(config)
    on = [name for name in ("loss", "gelu", "norm", "products", "epilogue") if getattr(kernels, name)]
    with_graphs = ", CUDA graphs" if graphs else ""
    label = f"fused kernels ({', '.join(on) or 'none'}), {kernels.attention} attention{with_graphs}"
    return Path(label, kernels, FusedLoss(kernels, graphs))


class FusedLoss:
    """The loss of one model through the fused path, and the graphs of its micro-batch where they pay."""

    def __init__(self, kernels: Kernels, graphs: bool) -> None:
        self._kernels, self._graphs = kernels, graphs
        self._graphed: GraphedLoss | None = None

    def __call__(self, model: nn.Module, tokens: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        assert isinstance(model, Decoder)
        # The path lowers precision itself; autocast on top would cast again.
        with torch.autocast("cuda", enabled=False):
            if not (self._graphs and torch.is_grad_enabled()):
                return fused_loss(model, tokens, targets, self._kernels)
            if self._graphed is None:
                compute = partial(fused_loss, model, kernels=self._kernels)
                self._graphed = GraphedLoss(compute, model)
            return self._graphed(tokens, targets)


def find_device(kind: str) -> Device:
    """What the capability rules ask of the device at hand."""
    if kind != "cuda":
        return Device("cpu")
    kernels = kernels_available(torch.device(kind))
    return Device("cuda", torch.cuda.get_device_name(), torch.cuda.get_device_capability(), kernels)


def _aligned(model: object) -> bool:
    """Whether cuBLASLt's kernels take the model's sizes: rows must begin at multiples of 16 bytes."""
    assert isinstance(model, DecoderConfig)
    return not any(size % 8 for size in (model.width, model.hidden_width, model.padded_vocab))


def _wants_graphs(config: Config) -> bool:
    """Graphs pay where the host cannot ask for kernels as fast as the device runs them: with small micro-batches."""
    tokens = config.trainer.micro_sequences * config.trainer.sequence_length
    asked = config.trainer.cuda_graphs
    return asked == "on" or (asked == "auto" and tokens <= GRAPHED_TOKENS)


def apply_fp8(config: Config, device: str, model: nn.Module, mesh: Mesh = ALONE) -> None:
    """Makes the blocks' products fp8 where `trainer.fp8` asks for it; raises where they cannot be."""
    scaling = config.trainer.fp8
    if scaling == "off":
        return
    check_setup(Setup(config, mesh, device=find_device(device)), KERNEL_RULES)
    assert isinstance(model, Decoder)
    use_fp8(model, scaling)


def _attention(asked: Literal["auto", "cudnn", "flash", "sdpa"], deterministic: bool) -> Backend:
    """cuDNN's kernel is the fastest measured on Hopper; older chips take torch's flash kernel, as do runs that must repeat
    themselves bit for bit: it can add up gradients in one order."""
    if asked != "auto":
        return asked
    return "cudnn" if torch.cuda.get_device_capability() >= (9, 0) and not deterministic else "flash"
