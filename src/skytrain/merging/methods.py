"""Methods of merging: the values of one tensor in several models become one tensor, in float32.

- average: the weighted sum.
- slerp: along the great circle between two models (Shoemake 1985), by the angle between the flattened tensors.
- task-arithmetic: the base plus weighted differences from it (Ilharco et al. 2022, arXiv 2212.04089).
- ties: the base plus the mean of the differences that agree with an elected sign, after all but the largest were
  trimmed (Yadav et al. 2023, arXiv 2306.01708).
- dare, dare-ties: differences are dropped at random and the rest scaled up (Yu et al. 2023, arXiv 2311.03099), then
  merged as in task-arithmetic, or by elected signs as in ties; the values that agree are then summed by their weights.
"""

from __future__ import annotations

import dataclasses
import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import torch
from torch import Tensor

from ..config import SkytrainError, plural

MethodName = Literal["average", "slerp", "task-arithmetic", "ties", "dare", "dare-ties"]
OF_DIFFERENCES: tuple[MethodName, ...] = ("task-arithmetic", "ties", "dare", "dare-ties")  # these need a base
PARALLEL = 0.9995  # cosine beyond which the angle is too small to divide by its sine
SUM_TOLERANCE = 1e-6


@dataclass(frozen=True)
class MergeMethod:
    """A method with its settings. `weights` has one value for each model; for slerp they are (1 - t, t)."""

    name: MethodName
    weights: tuple[float, ...]
    density: float = 1.0  # the share of differences that ties and dare keep
    scale: float = 1.0  # of the merged difference from the base
    seed: int = 0  # of dare
    normalize: bool | None = None  # divide by the weights of the models that agree; None: ties does, dare-ties does not

    def __post_init__(self) -> None:
        assert self.name in get_args(MethodName), self.name
        for option, values in (("--weights", self.weights), ("--scale", (self.scale,))):
            if not all(math.isfinite(value) for value in values):
                raise SkytrainError(f"{option} {','.join(f'{value:g}' for value in values)}: give finite numbers")
        if self.name in ("average", "slerp"):
            check_weights(self.weights)
        if self.name == "slerp" and len(self.weights) != 2:
            raise SkytrainError(f"slerp merges two models, and {len(self.weights)} were given\n  --method average")
        if not 0 < self.density <= 1:
            raise SkytrainError(f"--density {self.density}: must be more than 0 and at most 1")

    @property
    def normalizes(self) -> bool:
        """Whether the values that agree are averaged, and not only summed. The defaults are mergekit's."""
        return self.name == "ties" if self.normalize is None else self.normalize

    @property
    def needs_base(self) -> bool:
        return self.name in OF_DIFFERENCES

    def choose(self, numbers: Sequence[int]) -> MergeMethod:
        """Return the same method for some of the models."""
        return dataclasses.replace(self, weights=tuple(self.weights[number] for number in numbers))


def check_weights(weights: Sequence[float]) -> None:
    """Raise SkytrainError if the weights of an average are negative, not numbers, or do not sum to 1."""
    text = ",".join(f"{weight:g}" for weight in weights)
    if any(not weight >= 0 for weight in weights):
        raise SkytrainError(f"--weights {text}: the weights of an average must not be negative")
    total = sum(weights)
    if abs(total - 1) > SUM_TOLERANCE:
        hint = ",".join(f"{weight / total:.6g}" for weight in weights) if total else "1"
        raise SkytrainError(f"--weights {text}: they sum to {total:g}, and must sum to 1\n  --weights {hint}")


def combine(
    method: MergeMethod,
    name: str,
    tensors: Sequence[Tensor],
    base: Tensor | None = None,
    labels: Sequence[str] = (),
) -> Tensor:
    """Return the merged tensor `name`, in float32; integers and booleans are those of the base, or of the first model.

    A tensor that is the same in all models is unchanged, bit for bit. `labels` name the models in errors.
    """
    first = tensors[0] if base is None else base
    if not first.is_floating_point():
        return first
    _check_finite(name, tensors, base, labels)
    if all(torch.equal(first, each) for each in tensors):
        return first.float()
    values = [each.float() for each in tensors]
    if base is None:
        return {"average": _average, "slerp": _slerp}[method.name](values, method.weights)
    start = base.float()
    differences = [value - start for value in values]
    if method.name.startswith("dare"):
        differences = [_drop(each, method, f"{name}/{number}") for number, each in enumerate(differences)]
    elif method.name == "ties":
        differences = [_trim(each, method.density) for each in differences]
    if method.name.endswith("ties"):
        joined = _agreeing(differences, method.weights, mean=method.normalizes)
    else:
        joined = _average(differences, method.weights)
    return start + method.scale * joined


def _check_finite(name: str, tensors: Sequence[Tensor], base: Tensor | None, labels: Sequence[str]) -> None:
    """Raise for values that are not finite, which a merge would spread over the whole model."""
    names = labels or [f"model {number}" for number in range(1, len(tensors) + 1)]
    named = list(zip(names, tensors, strict=True))
    for label, tensor in [*named, *([("the base", base)] if base is not None else [])]:
        bad = int((~torch.isfinite(tensor)).sum())
        if bad:
            raise SkytrainError(
                f"{name} of {label} is NaN or infinite in {plural(bad, 'value')}: such a model cannot be merged\n"
                "  take a checkpoint from before it diverged"
            )


def _average(values: Sequence[Tensor], weights: Sequence[float]) -> Tensor:
    total = torch.zeros_like(values[0])
    for value, weight in zip(values, weights, strict=True):
        total.add_(value, alpha=weight)
    return total


def _slerp(values: Sequence[Tensor], weights: Sequence[float]) -> Tensor:
    one, two = values
    # In float64, because rounding would lose the angle of a tensor with many millions of values.
    flat = [value.reshape(-1).double() for value in values]
    lengths = [each.norm() for each in flat]
    if not all(lengths):
        return _average(values, weights)
    cosine = float(torch.dot(*flat) / (lengths[0] * lengths[1]))
    if abs(cosine) > PARALLEL:
        return _average(values, weights)
    angle = torch.tensor(cosine, dtype=torch.float64).arccos()
    shares = [float((weight * angle).sin() / angle.sin()) for weight in weights]
    return shares[0] * one + shares[1] * two


def _trim(difference: Tensor, density: float) -> Tensor:
    """Replace all but the largest values by zeros.

    Differences of bfloat16 weights have thousands of equal magnitudes at the cut. Sorting chooses among them as mergekit
    does; `topk` chooses others, some 15 in two million.
    """
    flat = difference.reshape(-1)
    kept = flat.abs().argsort(descending=True)[: max(1, int(density * flat.numel()))]
    return torch.zeros_like(flat).index_copy_(0, kept, flat[kept]).view(difference.shape)


def _drop(difference: Tensor, method: MergeMethod, name: str) -> Tensor:
    """Drop values at random and scale up the rest.

    The choice depends on the seed, the tensor and the model, not on the order in which tensors are merged.
    """
    digest = hashlib.sha256(f"{method.seed}/{name}".encode()).digest()
    generator = torch.Generator().manual_seed(int.from_bytes(digest[:8], "little") >> 1)
    kept = torch.rand(difference.shape, generator=generator) < method.density
    return difference * kept / method.density


def _agreeing(differences: Sequence[Tensor], weights: Sequence[float], *, mean: bool) -> Tensor:
    """Return the weighted mean, or sum, of the values whose sign is that of the weighted sum; zeros do not count.

    Where values cancel exactly, which happens to a few in millions, the positive ones are elected, as in mergekit.
    """
    sign = torch.where(_average(differences, weights) >= 0, 1.0, -1.0)
    total = torch.zeros_like(sign)
    share = torch.zeros_like(sign)
    for difference, weight in zip(differences, weights, strict=True):
        agrees = (difference.sign() * (1 if weight >= 0 else -1) == sign) & (difference != 0)
        total.add_(difference * agrees, alpha=weight)
        share.add_(agrees, alpha=weight)
    share[share.abs() < 1e-8] = 1.0
    return total / share if mean else total
