"""How the loss is computed on the device at hand: fused kernels, torch.compile, or plain torch. The choice is always said."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Literal

import torch
from torch import nn

from ..config import Config, ConfigError, DecoderConfig
from ..models.decoder import Decoder
from ..models.fp8 import fp8_problem, use_fp8
from ..models.fused import Backend, Kernels, fused_loss, unsupported
from ..models.kernels import cublaslt, kernels_available
from ..parallel import uses_deepspeed, uses_process_group
from ..planning.mesh import Mesh
from .graphs import GraphedLoss

ALONE = Mesh()
FP8_CAPABILITY = (8, 9)
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
    reason = _not_fused(config, device, mesh)
    if config.trainer.fused == "on" and reason:
        raise ConfigError(
            "trainer.fused", f"'on': the fused path does not serve {reason}", hint="try trainer.fused=auto"
        )
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


def _aligned(model: object) -> bool:
    """Whether cuBLASLt's kernels take the model's sizes: rows must begin at multiples of 16 bytes."""
    assert isinstance(model, DecoderConfig)
    return not any(size % 8 for size in (model.width, model.hidden_width, model.padded_vocab))


def _wants_graphs(config: Config) -> bool:
    """Graphs pay where the host cannot ask for kernels as fast as the device runs them: with small micro-batches."""
    tokens = config.trainer.micro_sequences * config.trainer.sequence_length
    asked = config.trainer.cuda_graphs
    return asked == "on" or (asked == "auto" and tokens <= GRAPHED_TOKENS)


def _not_fused(config: Config, device: str, mesh: Mesh) -> str | None:
    """What keeps this run off the fused path, or None."""
    if device != "cuda":
        return "a CPU"
    if not kernels_available(torch.device(device)):
        return f"{torch.cuda.get_device_name()} without Triton and bf16"
    if config.trainer.precision != "bf16-mixed":
        return f"trainer.precision={config.trainer.precision}"
    if uses_deepspeed(config):
        return "DeepSpeed"
    if mesh.tensor * mesh.pipeline * mesh.context > 1:
        return "a model divided by layers, tensors or sequence"
    if config.trainer.activation_checkpointing != "none" or config.trainer.loss_chunk_tokens or config.trainer.z_loss:
        return "activation checkpointing, a chunked loss or a z-loss"
    if config.trainer.fp8 != "off":
        return "trainer.fp8"
    return unsupported(config.model)


def apply_fp8(config: Config, device: str, model: nn.Module, mesh: Mesh = ALONE) -> None:
    """Makes the blocks' products fp8 where `trainer.fp8` asks for it; raises where they cannot be."""
    scaling = config.trainer.fp8
    if scaling == "off":
        return
    if problem := _not_fp8(config, device, mesh):
        raise ConfigError("trainer.fp8", f"{scaling!r}: {problem}", hint="try trainer.fp8=off")
    assert isinstance(model, Decoder)
    use_fp8(model, scaling)


def _not_fp8(config: Config, device: str, mesh: Mesh) -> str | None:
    if not isinstance(config.model, DecoderConfig):
        return f"model={config.model.name} is not the built-in decoder"
    if device != "cuda" or torch.cuda.get_device_capability() < FP8_CAPABILITY:
        return "it takes a GPU that multiplies fp8: Ada (L4), Hopper (H100, H200) or later"
    if mesh != ALONE:
        return "it is for one GPU so far"
    if not config.trainer.compile:
        return "rounding takes longer than the products gain unless trainer.compile=true fuses it with what is around"
    return fp8_problem(config.model)


def _attention(asked: Literal["auto", "cudnn", "flash", "sdpa"], deterministic: bool) -> Backend:
    """cuDNN's kernel is the fastest measured on Hopper; older chips take torch's flash kernel, as do runs that must repeat
    themselves bit for bit: it can add up gradients in one order."""
    if asked != "auto":
        return asked
    return "cudnn" if torch.cuda.get_device_capability() >= (9, 0) and not deterministic else "flash"
