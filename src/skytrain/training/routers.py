"""Routers of mixtures of experts, after a step: their loads over all ranks, and the biases that balance them."""

from __future__ import annotations

import math
import re

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from ..config import has_layers
from ..models import Router
from ..parallel import local_part_of

COLLAPSED = 0.1  # of the experts that a token could do without: a router that uses no more of them has collapsed


class RouterLoads:
    """How many tokens each expert got, by layer, and over all ranks: whole numbers, the same on any mesh."""

    def __init__(self, model: nn.Module) -> None:
        self.routers = {
            int(found[1]): module
            for name, module in model.named_modules()
            if isinstance(module, Router) and (found := re.search(r"blocks\.(\d+)\.", name))
        }
        config = getattr(model, "config", None)
        self.layers, self.experts = (config.layers, config.experts) if has_layers(config) else (0, None)
        self._model = model
        self.moves_biases = self.experts is not None and self.experts.bias and self.experts.bias_rate > 0
        self._load_le: Tensor | None = None

    def __bool__(self) -> bool:
        return self.experts is not None

    def collect(self) -> None:
        """Add up what routers have counted since the last call, over all ranks. All ranks call this together."""
        assert self.experts is not None
        device = next(self._model.parameters()).device
        load_le = torch.zeros(self.layers, self.experts.count, dtype=torch.int64, device=device)
        for layer, router in self.routers.items():
            if (load := router.take_load()) is not None:
                load_le[layer] = load
        if dist.is_initialized():
            dist.all_reduce(load_le)
        self._load_le = load_le

    @torch.no_grad()
    def move_biases(self) -> None:
        """Lower the bias of each expert with more than the mean load, raise that of the others (DeepSeek-V3)."""
        assert self._load_le is not None and self.experts is not None
        for layer, router in self.routers.items():
            load = self._load_le[layer].double()
            step = (load.mean() - load).sign().float() * self.experts.bias_rate
            bias: Tensor | None = router.load_bias
            if isinstance(bias, DTensor):
                bias.to_local().add_(local_part_of(bias, step))
            elif bias is not None:
                bias.add_(step.to(bias.dtype))

    def metrics(self) -> dict[str, float]:
        """Return the load of the busiest expert over the mean, and the entropy of loads over its largest value.

        For each layer, and for the worst one.
        """
        if self._load_le is None or self.experts is None:
            return {}
        found: dict[str, float] = {}
        for layer, load in enumerate(self._load_le.double().tolist()):
            if total := sum(load):
                shares = [each / total for each in load if each]
                entropy = -sum(share * math.log(share) for share in shares)
                found[f"moe/load_max/{layer}"] = max(load) * len(load) / total
                found[f"moe/entropy/{layer}"] = entropy / math.log(len(load)) if len(load) > 1 else 1.0
        if not found:
            return {}
        worst = {
            "moe/load_max": max(value for name, value in found.items() if "load_max" in name),
            "moe/entropy": min(value for name, value in found.items() if "entropy" in name),
        }
        return {**worst, **found}

    def collapsed(self, metrics: dict[str, float]) -> str | None:
        """Return which layer's router uses hardly more experts than one token does, and what helps; None if none."""
        if self.experts is None or "moe/entropy" not in metrics:
            return None
        count, per_token = self.experts.count, self.experts.per_token
        used = count ** metrics["moe/entropy"]  # the number of experts with equal loads that have this entropy
        if count == per_token or used > per_token + COLLAPSED * (count - per_token):
            return None
        entropy = metrics["moe/entropy"]
        layer = next(
            name.rpartition("/")[2]
            for name, value in metrics.items()
            if name.startswith("moe/entropy/") and value == entropy
        )
        return (
            f"layer {layer}: the router uses {used:.1f} of {count} experts (moe/entropy {entropy:.2f}); "
            "try a larger model.experts.balance_loss, or model.experts.bias=true with model.experts.bias_rate=0.001"
        )
