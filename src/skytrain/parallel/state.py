"""State by parameter name: put on a mesh part by part, and gathered from it one tensor at a time."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

Named = Mapping[str, nn.Parameter]


def tied_names(model: nn.Module) -> dict[str, str]:
    """Each name under which a parameter appears a second time, and the first."""
    first: dict[int, str] = {}
    again: dict[str, str] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        if id(parameter) in first:
            again[name] = first[id(parameter)]
        else:
            first[id(parameter)] = name
    return again


@torch.no_grad()
def put(target: Tensor, whole: Tensor) -> None:
    """Copies this rank's part of `whole` into `target`."""
    if not isinstance(target, DTensor):
        target.copy_(whole)
        return
    part = whole
    # Sharding cuts what tensor parallelism has cut before, so the last dimension of the mesh comes first.
    for axis in reversed(range(target.device_mesh.ndim)):
        placement = target.placements[axis]
        if not placement.is_replicate():
            dim = placement.dim  # type: ignore[attr-defined]
            pieces = part.chunk(target.device_mesh.size(axis), dim)
            mine = target.device_mesh.get_local_rank(axis)
            part = pieces[mine] if mine < len(pieces) else part.narrow(dim, 0, 0)
    target.to_local().copy_(part)


def fill(named: Named, value: Callable[[str, torch.Size], Tensor]) -> None:
    """Gives each parameter its value, one whole tensor in memory at a time."""
    for name, parameter in named.items():
        put(parameter, value(name, parameter.shape))


def optimizer_slots(named: Named, optimizer: torch.optim.Optimizer) -> dict[str, dict[str, Any]]:
    return {name: optimizer.state[parameter] for name, parameter in named.items() if parameter in optimizer.state}


def gather(tree: Mapping[str, Any], owner: bool) -> dict[str, Any]:
    """Every rank's named values, whole, on the first rank; elsewhere nothing.

    Ranks of one stage hold the same names and put tensors together between them; one of them, the `owner`, hands them
    on. Only one tensor is whole at a time, but on the first rank.
    """
    described = {name: _describe(value) for name, value in tree.items()}
    everyone: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(everyone, described if owner else {})
    sources = {name: rank for rank, names in enumerate(everyone) for name in names}
    found: dict[str, Any] = {}
    for name, source in sources.items():
        whole = _whole(tree[name]) if name in tree else None
        received = _hand_over(whole, everyone[source][name], source)
        if dist.get_rank() == 0:
            found[name] = received
    return found


def _describe(value: Any) -> Any:
    """What the first rank must know to receive a value; a value that is no tensor is its own description."""
    return (tuple(value.shape), value.dtype) if isinstance(value, Tensor) else value


def _whole(value: Any) -> Any:
    if isinstance(value, DTensor):
        value = value.full_tensor()
    return value.detach().cpu() if isinstance(value, Tensor) else value


def _hand_over(whole: Any, description: Any, source: int) -> Any:
    rank = dist.get_rank()
    if source == 0 or not (isinstance(description, tuple) and isinstance(description[1], torch.dtype)):
        return whole if source == 0 else description
    if rank == source:
        dist.send(whole.contiguous(), 0)
    if rank == 0:
        shape, dtype = description
        whole = torch.empty(shape, dtype=dtype)
        dist.recv(whole, source)
    return whole


def flatten_slots(slots: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    return {f"{name}/{key}": value for name, slot in slots.items() for key, value in slot.items()}


def unflatten_slots(flat: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    slots: dict[str, dict[str, Any]] = {}
    for path, value in flat.items():
        name, _, key = path.rpartition("/")
        slots.setdefault(name, {})[key] = value
    return slots


def names_in_groups(optimizer: torch.optim.Optimizer, named: Named) -> list[list[str]]:
    names = {id(parameter): name for name, parameter in named.items()}
    return [[names[id(parameter)] for parameter in group["params"]] for group in optimizer.param_groups]


def merge_groups(everyone: list[list[dict[str, Any]]]) -> list[dict[str, Any]]:
    """The groups of all stages as those of one optimizer: what has the same settings is one group."""
    merged: list[dict[str, Any]] = []
    for group in (group for groups in everyone for group in groups):
        settings = {key: value for key, value in group.items() if key != "params"}
        known = next((one for one in merged if {k: v for k, v in one.items() if k != "params"} == settings), None)
        if known is None:
            merged.append({**settings, "params": list(group["params"])})
        else:
            known["params"] = list(dict.fromkeys([*known["params"], *group["params"]]))
    return merged


def load_slots(
    optimizer: torch.optim.Optimizer, named: Named, saved: Mapping[str, Any], same: Mapping[str, str]
) -> None:
    """Puts this rank's parts of a saved optimizer state, keyed by name, into the optimizer."""
    for name, parameter in named.items():
        slot = saved["state"].get(same.get(name, name))
        if slot is None:
            continue
        mine: dict[str, Any] = {}
        for key, value in slot.items():
            if isinstance(value, Tensor) and value.shape == parameter.shape:
                mine[key] = torch.zeros_like(parameter, memory_format=torch.preserve_format).detach()
                put(mine[key], value)
            elif isinstance(value, Tensor):
                # A count of steps: fused optimizers keep it beside the parameter, others on the CPU.
                fused = any(group.get("fused") for group in optimizer.param_groups)
                mine[key] = value.to(parameter.device) if fused else value.clone()
            else:
                mine[key] = value
        optimizer.state[parameter] = mine
    for group, names in zip(optimizer.param_groups, names_in_groups(optimizer, named), strict=True):
        group.update(group_settings(saved, same.get(names[0], names[0])))


def group_settings(saved: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Learning rate, decay and the like of the saved group that a parameter is in."""
    group = next(group for group in saved["param_groups"] if name in group["params"])
    return {key: value for key, value in group.items() if key != "params"}


def numbers_to_names(state: Mapping[str, Any], groups: list[list[str]]) -> dict[str, Any]:
    """A torch optimizer's own state_dict, which numbers the parameters of its groups, with their names instead."""
    names = [name for group in groups for name in group]
    return {
        "state": {names[index]: slot for index, slot in state["state"].items()},
        "param_groups": [
            {**group, "params": [names[index] for index in group["params"]]} for group in state["param_groups"]
        ],
    }


def names_to_numbers(state: Mapping[str, Any], groups: list[list[str]]) -> dict[str, Any]:
    """The inverse, for an optimizer with these groups."""
    numbers = {name: index for index, name in enumerate(name for group in groups for name in group)}
    return {
        "state": {numbers[name]: slot for name, slot in state["state"].items()},
        "param_groups": [
            {**group_settings(state, names[0]), "params": [numbers[name] for name in names]} for names in groups
        ],
    }
