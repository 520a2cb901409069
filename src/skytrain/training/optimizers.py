"""Optimizers over groups of parameters: matrices, which decay, and vectors, which do not, at the rates their size asks for."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import nn
from torch.distributed.tensor import DTensor
from torch.optim._muon import _adjust_lr, _zeropower_via_newtonschulz

from ..config import DecoderConfig, LionConfig, MuonConfig, OptimizerConfig
from ..models import UpdateScales, update_scales
from ..parallel import local_part_of


def make_optimizer(model: nn.Module, config: OptimizerConfig, *, fused: bool) -> torch.optim.Optimizer:
    betas = (config.beta1, config.beta2)
    if isinstance(config, LionConfig):
        return Lion(parameter_groups(model, config.lr, config.weight_decay), lr=config.lr, betas=betas)
    if isinstance(config, MuonConfig):
        return _make_muon(model, config, fused)
    groups = parameter_groups(model, config.lr, config.weight_decay, config.eps)
    # Where it is not fused AdamW takes its foreach form, one kernel over many tensors, on a GPU.
    return torch.optim.AdamW(groups, lr=config.lr, betas=betas, eps=config.eps, fused=fused)


def parameter_groups(
    model: nn.Module, lr: float, weight_decay: float, eps: float | None = None, only: set[str] | None = None
) -> list[dict[str, Any]]:
    """Weights of two or more dimensions decay; biases and norms do not. What shares all its settings is one group.

    `lr`, `weight_decay` and `eps` are those of the base model; the decoder's parametrization scales them for each parameter.
    """
    groups: dict[tuple[float, float, float], dict[str, Any]] = {}
    for name, parameter in model.named_parameters():
        if not parameter.requires_grad or (only is not None and name not in only):
            continue
        scales = _scales(model, name, parameter)
        decay = weight_decay * scales.weight_decay if parameter.ndim >= 2 else 0.0
        settings: dict[str, Any] = {"params": [], "weight_decay": decay, "lr": lr * scales.lr}
        if eps is not None:
            settings["eps"] = eps * scales.eps
        group = groups.setdefault((decay, settings["lr"], scales.eps), settings)
        group["params"].append(parameter)
    return sorted(groups.values(), key=lambda group: -group["weight_decay"])


def _scales(model: nn.Module, name: str, parameter: nn.Parameter) -> UpdateScales:
    config = getattr(model, "config", None)
    return update_scales(config, name, parameter.ndim) if isinstance(config, DecoderConfig) else UpdateScales()


def _make_muon(model: nn.Module, config: MuonConfig, fused: bool) -> torch.optim.Optimizer:
    hidden = hidden_matrices(model)
    others = {name for name, parameter in model.named_parameters()} - hidden
    # A step of Muon has the same size in every direction whatever the width, so muP's smaller rates are not for it.
    matrices = [parameter for name, parameter in model.named_parameters() if name in hidden and parameter.requires_grad]
    groups = parameter_groups(model, config.lr, config.weight_decay, config.eps, only=others)
    adamw = torch.optim.AdamW(groups, lr=config.lr, betas=(config.beta1, config.beta2), eps=config.eps, fused=fused)
    if not matrices:  # a plugged-in model may have none between embedding and head
        return adamw
    muon = MatrixMuon(
        matrices,
        lr=config.lr,
        weight_decay=config.weight_decay,
        momentum=config.momentum,
        adjust_lr_fn="match_rms_adamw",
    )
    return Muon(muon, adamw)


def hidden_matrices(model: nn.Module) -> set[str]:
    """Names of the weights of linear layers, but for the head: one shared with an embedding, or of the vocabulary's height."""
    config = getattr(model, "config", None)
    if isinstance(config, DecoderConfig):
        return {
            name for name, parameter in model.named_parameters() if name.startswith("blocks.") and parameter.ndim == 2
        }
    tables = {id(module.weight) for module in model.modules() if isinstance(module, nn.Embedding)}
    heights = {module.num_embeddings for module in model.modules() if isinstance(module, nn.Embedding)}
    layers = {id(module.weight) for module in model.modules() if isinstance(module, nn.Linear)}
    kept = layers - tables
    return {
        name
        for name, parameter in model.named_parameters()
        if id(parameter) in kept and parameter.size(0) not in heights
    }


class MatrixMuon(torch.optim.Muon):
    """torch's Muon, also for matrices that ranks hold in parts.

    A step needs whole matrices: each is gathered, in the update's precision, and made orthogonal on every rank, which then
    keeps its own part. That sends as much as gathering the weights once, and computes on each rank what one device would.
    """

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        divided = [
            (group, parameter)
            for group in self.param_groups
            for parameter in group["params"]
            if isinstance(parameter, DTensor) and parameter.grad is not None
        ]
        if not divided:
            return super().step(closure)
        assert closure is None
        for group, parameter in divided:
            self._step_in_parts(group, parameter)
        return None

    def _step_in_parts(self, group: dict[str, Any], parameter: DTensor) -> None:
        grad, kept = parameter.grad, self.state[parameter]
        assert grad is not None
        if "momentum_buffer" not in kept:
            kept["momentum_buffer"] = torch.zeros_like(grad, memory_format=torch.preserve_format)
        momentum: DTensor = kept["momentum_buffer"]
        momentum.lerp_(grad, 1 - group["momentum"])
        update: Any = grad.lerp(momentum, group["momentum"]) if group["nesterov"] else momentum
        whole = _zeropower_via_newtonschulz(
            update.full_tensor(), group["ns_coefficients"], group["ns_steps"], group["eps"]
        )
        rate = _adjust_lr(group["lr"], group["adjust_lr_fn"], parameter.shape)
        local = parameter.to_local()
        local.mul_(1 - group["lr"] * group["weight_decay"])
        local.add_(local_part_of(parameter, whole).to(local.dtype), alpha=-rate)


class Muon(torch.optim.Optimizer):
    """torch's Muon and AdamW as one optimizer, over one list of groups and one state, as Lightning and checkpoints expect."""

    def __init__(self, muon: torch.optim.Muon, adamw: torch.optim.AdamW) -> None:
        self._parts: tuple[torch.optim.Optimizer, ...] = (muon, adamw)
        self._counts = [len(part.param_groups) for part in self._parts]
        super().__init__([*muon.param_groups, *adamw.param_groups], {})
        self._share()

    def _share(self) -> None:
        """The parts work on this optimizer's groups and state themselves, not on copies."""
        groups = iter(self.param_groups)
        for part, count in zip(self._parts, self._counts, strict=True):
            part.param_groups = [next(groups) for _ in range(count)]
            part.state = self.state

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        super().load_state_dict(state_dict)
        self._share()

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for part in self._parts:
            part.step()
        return loss


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
            momenta = [
                self.state[p].setdefault("momentum", torch.zeros_like(p, memory_format=torch.preserve_format))
                for p in params
            ]
            beta1, beta2 = group["betas"]
            updates = torch._foreach_mul(momenta, beta1)
            torch._foreach_add_(updates, grads, alpha=1.0 - beta1)
            torch._foreach_sign_(updates)
            torch._foreach_mul_(params, 1.0 - group["lr"] * group["weight_decay"])
            torch._foreach_add_(params, updates, alpha=-group["lr"])
            torch._foreach_lerp_(momenta, grads, 1.0 - beta2)
        return loss
