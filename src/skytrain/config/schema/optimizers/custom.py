"""A user's optimizer, by the path of its class."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

from ..declare import NUMBERS, setting, settings
from ..kinds import NonNegative, OtherKeys, PositiveFloat
from .base import OptimizerConfig, OptimizerFacts


@settings
class CustomOptimizerConfig(OptimizerConfig):
    """Any torch.optim.Optimizer that updates each element on its own; further keys are arguments of its class."""

    facts: ClassVar = OptimizerFacts(state_bytes=8)  # assumed: two float32 numbers, as AdamW has

    name: Literal["custom"] = setting(NUMBERS, "The optimizer.")
    target: str = setting(NUMBERS, "Path of the class, such as `torch.optim.NAdam` or `my_package.MyOptimizer`.")
    lr: PositiveFloat = setting(NUMBERS, "Peak learning rate.")
    weight_decay: NonNegative = setting(
        NUMBERS, "Decay of matrices, for a class with `weight_decay`; biases, norms and other vectors do not decay."
    )
    args: Annotated[dict[str, Any], OtherKeys()] = setting(
        NUMBERS, "Arguments of that class, written directly under `optimizer`."
    )

    def class_path(self) -> str:
        return self.target

    def arguments(self) -> dict[str, Any]:
        return self.args


OPTIMIZER = CustomOptimizerConfig
