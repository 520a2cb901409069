"""The declaration of an optimizer: its settings, the class that implements it, and the facts that planning needs."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar


@dataclass(frozen=True)
class OptimizerFacts:
    """The properties of an optimizer that planning and the capability rules need, without loading it."""

    state_bytes: int  # per parameter
    matrix_state_bytes: int | None = None  # per parameter of the blocks' matrices; None: as for all parameters
    fused: bool = False  # the class takes `fused` and then updates in one kernel, without temporary tensors
    # The class receives the blocks' matrices in groups marked `hidden_matrices`, and must see each of them whole.
    # DeepSpeed and offloading are then refused.
    whole_matrices: bool = False
    matrix_flops: Callable[[float, float], float] | None = None  # of one update, by the shorter and the longer side
    deepspeed_offload: bool = False  # DeepSpeed has a kernel of it for the CPU


class OptimizerConfig(ABC):
    """The settings of an optimizer. Subclasses are `settings` classes with a Literal `name`."""

    facts: ClassVar[OptimizerFacts]
    name: str
    lr: float
    weight_decay: float

    @abstractmethod
    def class_path(self) -> str:
        """Return the path of the torch.optim.Optimizer that implements it."""

    @abstractmethod
    def arguments(self) -> dict[str, Any]:
        """Return its keyword arguments except `params`, `lr` and `fused`."""

    def rates(self) -> dict[str, float]:
        """Return the learning rates that differ from `lr`: of `embedding`, `head` and `vector` parameters."""
        return {}
