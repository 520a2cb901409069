"""Training state by parameter name, so that any mesh reads any mesh's checkpoint.

Each rank saves what it holds, and no value is saved twice: a tied weight has one name, and one rank saves each copy.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from typing import Any

from lightning.pytorch.core.optimizer import LightningOptimizer
from lightning.pytorch.strategies import DDPStrategy, SingleDeviceStrategy, Strategy
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from . import state

# How an optimizer computes, not what: a run may resume on other hardware.
OWN_SETTINGS = ("fused", "foreach", "capturable", "differentiable")


class StateByName(Strategy):
    """A strategy whose module holds its network as `model`."""

    @property
    def restore_checkpoint_after_setup(self) -> bool:
        return True  # tensors are read directly into the parameters

    def _network(self) -> nn.Module:
        assert self.lightning_module is not None
        network = self.lightning_module.model
        assert isinstance(network, nn.Module)
        return network

    def same_names(self) -> Mapping[str, str]:
        """Return the further names of parameters, mapped to the first."""
        return state.tied_names(self._network())

    def _is_mine(self, name: str, tensor: Tensor) -> bool:
        """Return whether this rank saves its part of a tensor, rather than another rank that holds a copy."""
        if not isinstance(tensor, DTensor):
            return True
        mesh = tensor.device_mesh
        choice = zlib.crc32(name.encode())
        copies = [axis for axis, placement in enumerate(tensor.placements) if placement.is_replicate()]
        return all(mesh.get_local_rank(axis) == choice % mesh.size(axis) for axis in copies)

    def _mine(self, named: Mapping[str, Tensor]) -> dict[str, Tensor]:
        return {name: tensor for name, tensor in named.items() if self._is_mine(name, tensor)}

    def own_values(self, named: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return what this rank saves of tensors that are named and placed as the parameters are."""
        tied = self.same_names()
        return self._mine({name: tensor for name, tensor in named.items() if name not in tied})

    def lightning_module_state_dict(self) -> dict[str, Any]:
        return self.own_values(state.named_tensors(self._network()))

    def load_model_state_dict(self, checkpoint: Mapping[str, Any], strict: bool = True) -> None:
        tied = self.same_names()
        # A pipeline has two copies of a tied weight; both are read from the saved one.
        named = {id(tensor): (name, tensor) for name, tensor in state.named_tensors(self._network()).items()}
        checkpoint["state_dict"].read_into((tied.get(name, name), tensor) for name, tensor in named.values())

    def optimizer_state(self, optimizer: Any) -> dict[str, Any]:
        optimizer = optimizer.optimizer if isinstance(optimizer, LightningOptimizer) else optimizer
        tied = self.same_names()
        groups = state.names_in_groups(optimizer, dict(self._network().named_parameters()))
        named = state.numbers_to_names(optimizer.state_dict(), groups)
        flat = state.flatten_slots({name: slots for name, slots in named["state"].items() if name not in tied})
        for group in named["param_groups"]:
            group["params"] = list(dict.fromkeys(tied.get(name, name) for name in group["params"]))
        return {"state": state.unflatten_slots(self._mine(flat)), "param_groups": named["param_groups"]}

    def load_optimizer_state_dict(self, checkpoint: Mapping[str, Any]) -> None:
        tied = self.same_names()
        named = dict(self._network().named_parameters())
        for optimizer, saved in zip(self.optimizers, checkpoint["optimizer_states"], strict=True):
            own = [{key: group.get(key) for key in OWN_SETTINGS if key in group} for group in optimizer.param_groups]
            groups = state.names_in_groups(optimizer, named)
            slots = state.empty_slots(named, tied, saved["tensors"].described())
            saved["tensors"].read_into(
                (f"{tied.get(name, name)}/{slot}", value)
                for name, found in slots.items()
                for slot, value in found.items()
            )
            settings = state.merge_groups(saved["groups"])
            optimizer.load_state_dict(state.names_to_numbers({"state": slots, "param_groups": settings}, groups, tied))
            for group, kept in zip(optimizer.param_groups, own, strict=True):
                group.update(kept)

    def save_checkpoint(self, checkpoint: dict[str, Any], filepath: Any, storage_options: Any | None = None) -> None:
        self.checkpoint_io.save_checkpoint(checkpoint, filepath, storage_options=storage_options)


class OneDevice(StateByName, SingleDeviceStrategy):
    """Lightning's strategy for one device, with state by name."""


class Replicas(StateByName, DDPStrategy):
    """Lightning's DDP. Every rank holds the whole state, and saves a share of it."""

    def _mine(self, named: Mapping[str, Tensor]) -> dict[str, Tensor]:
        owners = share_out({name: tensor.numel() for name, tensor in named.items()}, self.world_size)
        return {name: tensor for name, tensor in named.items() if owners[name] == self.global_rank}


def share_out(sizes: Mapping[str, int], ranks: int) -> dict[str, int]:
    """Assign each name to a rank, in the same way on all ranks, so that each has about the same amount."""
    loads = [0] * ranks
    owners: dict[str, int] = {}
    for name in sorted(sizes, key=lambda name: (-sizes[name], name)):
        owners[name] = loads.index(min(loads))
        loads[owners[name]] += sizes[name]
    return owners
