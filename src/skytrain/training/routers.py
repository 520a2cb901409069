"""Routers of mixtures of experts, after a step: their loads over all ranks, and the biases that balance them."""

from __future__ import annotations

import math
import re

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from ..config import has_layers
from ..models import MixtureOfExperts
from ..parallel import local_part_of

COLLAPSED = 0.1  # of the experts that a token could do without: a router that uses no more of them has collapsed
ALMOST_ALL = 0.9  # of the tokens: an expert that gets them has become an MLP
MANY = 4  # times the experts of a token: with fewer of them, one may well be used by nearly all


class RouterLoads:
    """How many tokens each expert got, by layer, and over all ranks: whole numbers, the same on any mesh."""

    def __init__(self, model: nn.Module) -> None:
        self.mixtures = {
            int(found[1]): module
            for name, module in model.named_modules()
            if isinstance(module, MixtureOfExperts) and (found := re.search(r"blocks\.(\d+)\.", name))
        }
        config = getattr(model, "config", None)
        self.layers, self.experts = (config.layers, config.experts) if has_layers(config) else (0, None)
        self._model = model
        self.moves_biases = self.experts is not None and self.experts.bias and self.experts.bias_rate > 0
        self._load_le: Tensor | None = None
        self._served_l: Tensor | None = (
            None  # rows that experts computed: as many as were sent, unless some were dropped
        )

    def __bool__(self) -> bool:
        return self.experts is not None

    def collect(self) -> None:
        """Add up what routers have counted since the last call, over all ranks. All ranks call this together."""
        assert self.experts is not None
        device = next(self._model.parameters()).device
        counts = torch.zeros(self.layers, self.experts.count + 1, dtype=torch.int64, device=device)
        for layer, mixture in self.mixtures.items():
            load, served = mixture.router.take_load(), mixture.experts.take_served()
            if load is not None:
                counts[layer, :-1] = load
            if served is not None:
                counts[layer, -1] = served
        if dist.is_initialized():
            dist.all_reduce(counts)
        self._load_le, self._served_l = counts[:, :-1], counts[:, -1]

    @torch.no_grad()
    def move_biases(self) -> None:
        """Lower the bias of each expert with more than the mean load, raise that of the others (DeepSeek-V3)."""
        assert self._load_le is not None and self.experts is not None
        for layer, mixture in self.mixtures.items():
            load = self._load_le[layer].double()
            step = (load.mean() - load).sign().float() * self.experts.bias_rate
            bias: Tensor | None = mixture.router.load_bias
            if isinstance(bias, DTensor):
                bias.to_local().add_(local_part_of(bias, step))
            elif bias is not None:
                bias.add_(step.to(bias.dtype))

    def metrics(self) -> dict[str, float]:
        """Return the load of the busiest expert over the mean, the entropy of loads over its largest value, and what was dropped.

        The last is the share of rows that routers sent and no expert computed. For each layer, and for the worst one.
        """
        if self._load_le is None or self._served_l is None or self.experts is None:
            return {}
        worst: dict[str, float] = {}
        found: dict[str, float] = {}
        loads = zip(self._load_le.double().tolist(), self._served_l.tolist(), strict=True)
        for layer, (load, served) in enumerate(loads):
            if total := sum(load):
                shares = [each / total for each in load if each]
                entropy = -sum(share * math.log(share) for share in shares)
                values = {
                    "moe/load_max": max(load) * len(load) / total,
                    "moe/entropy": entropy / math.log(len(load)) if len(load) > 1 else 1.0,
                    "moe/dropped": 1.0 - served / total,
                }
                found.update({f"{name}/{layer}": value for name, value in values.items()})
                for name, value in values.items():
                    choose = min if name == "moe/entropy" else max
                    worst[name] = choose(worst.get(name, value), value)
        return {**worst, **found}

    def collapsed(self, metrics: dict[str, float]) -> str | None:
        """Return which layer's router has collapsed, and what helps; None if none has.

        It uses hardly more experts than one token does, or sends nearly every token to one of them.
        """
        if self.experts is None or "moe/entropy" not in metrics:
            return None
        count, per_token = self.experts.count, self.experts.per_token
        entropy, busiest = metrics["moe/entropy"], metrics["moe/load_max"] * per_token / count
        used = count**entropy  # the number of experts with equal loads that have this entropy
        if count > per_token and used <= per_token + COLLAPSED * (count - per_token):
            layer = _layer_with(metrics, "moe/entropy")
            problem = f"the router uses {used:.1f} of {count} experts (moe/entropy {entropy:.2f})"
        elif count >= MANY * per_token and busiest >= ALMOST_ALL:
            layer = _layer_with(metrics, "moe/load_max")
            problem = (
                f"one of {count} experts gets {busiest:.0%} of the tokens (moe/load_max {metrics['moe/load_max']:.1f})"
            )
        else:
            return None
        return (
            f"layer {layer}: {problem}; "
            "try a larger model.experts.balance_loss, or model.experts.bias=true with model.experts.bias_rate=0.001"
        )


def _layer_with(metrics: dict[str, float], name: str) -> str:
    """Return the layer that has the worst value."""
    each = (key for key, value in metrics.items() if key.startswith(f"{name}/") and value == metrics[name])
    return next(each).rpartition("/")[2]
