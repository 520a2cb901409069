"""A rule of the capability table, and the setup that it judges."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

from ..mesh import Mesh
from ..schema import Config


@dataclass(frozen=True)
class Device:
    """The known properties of the device that a run would use."""

    kind: Literal["cpu", "cuda"]
    name: str = "cpu"
    capability: tuple[int, int] = (0, 0)  # CUDA's number for the chip's generation
    kernels: bool = False  # whether Skytrain's Triton kernels run on it


@dataclass(frozen=True)
class HFShape:
    """What meshes depend on in a model of transformers: its `config.json`, and transformers' plan for its architecture."""

    name: str
    sizes: Mapping[str, int]  # what tensor-parallel ranks divide, by a name for messages
    has_tensor_plan: bool | None  # whether transformers says how its layers are divided; None: it is not installed


@dataclass(frozen=True)
class Setup:
    """A configuration on a mesh. A field that is None is not known yet, and rules that need it do not apply."""

    config: Config
    mesh: Mesh
    processes: int | None = None
    device: Device | None = None
    hf: HFShape | None = None

    @property
    def known_device(self) -> Device | None:
        """Return the device; `trainer.device=cpu` says it before it has been looked for."""
        return Device("cpu") if self.device is None and self.config.trainer.device == "cpu" else self.device


@dataclass(frozen=True)
class Rule:
    """Settings that cannot be combined, or sizes that do not divide.

    `problem` tells what is wrong, with the values, or returns None if the setup works. `excludes` says the same in
    general, for the documentation.
    """

    name: str
    key: str  # the setting that is refused
    excludes: str
    problem: Callable[[Setup], str | None]
    fix: str
