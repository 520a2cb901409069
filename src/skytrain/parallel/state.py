"""State by parameter name: initializing shards, and the names in checkpoints."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, Replicate

if TYPE_CHECKING:
    from ..checkpoints import SavedTensor

Named = Mapping[str, nn.Parameter]


def tied_names(model: nn.Module) -> dict[str, str]:
    """Map each further name of a parameter to its first name."""
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
    """Copy this rank's part of `whole` into `target`."""
    if isinstance(target, DTensor):
        target.to_local().copy_(local_part_of(target, whole))
    else:
        target.copy_(whole)


def local_part_of(target: DTensor, whole: Tensor) -> Tensor:
    """Return what this rank would hold of `whole` if it were placed as `target` is."""
    part = whole
    # Sharding splits what tensor parallelism has split before, so the last dimension of the mesh comes first.
    for axis in reversed(range(target.device_mesh.ndim)):
        placement = target.placements[axis]
        if not placement.is_replicate():
            dim = placement.dim  # type: ignore[attr-defined]
            pieces = part.chunk(target.device_mesh.size(axis), dim)
            mine = target.device_mesh.get_local_rank(axis)
            part = pieces[mine] if mine < len(pieces) else part.narrow(dim, 0, 0)
    return part


def allocate(part: nn.Module, device: torch.device) -> None:
    """Allocate parameters that are on the meta device. Buffers are not on it, and keep their values."""
    buffers = {name: buffer.clone() for name, buffer in part.named_buffers() if not buffer.is_meta}
    part.to_empty(device=device)
    for name, buffer in part.named_buffers():
        if name in buffers:
            buffer.copy_(buffers[name])


def fill(named: Named, value: Callable[[str, torch.Size], Tensor]) -> None:
    """Set each parameter to its value, with one whole tensor at a time, which may be a view of a mapped file."""
    for name, parameter in named.items():
        put(parameter, value(name, parameter.shape))


def named_tensors(model: nn.Module) -> dict[str, Tensor]:
    """Return the parameters, under all their names, and the persistent buffers."""
    found: dict[str, Tensor] = dict(model.named_parameters(remove_duplicate=False))
    for path, module in model.named_modules():
        for name, buffer in module.named_buffers(recurse=False):
            if name not in module._non_persistent_buffers_set:
                found[f"{path}.{name}" if path else name] = buffer
    return found


def empty_slots(
    named: Named, tied: Mapping[str, str], saved: Mapping[str, SavedTensor]
) -> dict[str, dict[str, Tensor]]:
    """Return empty tensors for an optimizer's saved state, each sharded like its parameter."""
    slots: dict[str, dict[str, Tensor]] = {}
    by_name = unflatten_slots(saved)
    for name, parameter in named.items():
        for slot, described in by_name.get(tied.get(name, name), {}).items():
            dtype = getattr(torch, described.dtype)
            # The step count is a scalar, which stays on the CPU; the optimizer moves it if it needs to.
            shape = tuple(parameter.shape)
            if described.shape == shape:
                value = torch.zeros_like(
                    parameter, dtype=dtype, memory_format=torch.preserve_format, requires_grad=False
                )
            elif described.shape == (*shape[:-1], 1) and len(shape) > 1:
                value = zeros_by_row(parameter, dtype)
            else:
                value = torch.zeros(described.shape, dtype=dtype)
            slots.setdefault(name, {})[slot] = value.detach()
    return slots


def zeros_by_row(parameter: Tensor, dtype: torch.dtype) -> Tensor:
    """Return a zero for each row of a matrix, in a last dimension of 1, placed as the rows are."""
    shape = (*parameter.shape[:-1], 1)
    if not isinstance(parameter, DTensor):
        return torch.zeros(shape, dtype=dtype, device=parameter.device)
    local = parameter.to_local()
    columns = parameter.ndim - 1
    return DTensor.from_local(
        torch.zeros((*local.shape[:-1], 1), dtype=dtype, device=local.device),
        parameter.device_mesh,
        [Replicate() if getattr(each, "dim", None) == columns else each for each in parameter.placements],
        run_check=False,
        shape=torch.Size(shape),
        stride=torch.empty(shape, device="meta").stride(),
    )


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


def merge_groups(everyone: Iterable[list[dict[str, Any]]]) -> list[dict[str, Any]]:
    """Merge the parameter groups of all stages: groups with the same settings become one."""
    merged: list[dict[str, Any]] = []
    for group in (group for groups in everyone for group in groups):
        settings = {key: value for key, value in group.items() if key != "params"}
        known = next((one for one in merged if {k: v for k, v in one.items() if k != "params"} == settings), None)
        if known is None:
            merged.append({**settings, "params": list(group["params"])})
        else:
            known["params"] = list(dict.fromkeys([*known["params"], *group["params"]]))
    return merged


def group_settings(saved: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Return the settings of the saved group that contains a parameter: learning rate, weight decay and so on."""
    group = next(group for group in saved["param_groups"] if name in group["params"])
    return {key: value for key, value in group.items() if key != "params"}


def numbers_to_names(state: Mapping[str, Any], groups: list[list[str]]) -> dict[str, Any]:
    """Return a torch optimizer's state_dict with parameter names instead of numbers."""
    names = [name for group in groups for name in group]
    return {
        "state": {names[index]: slot for index, slot in state["state"].items()},
        "param_groups": [
            {**group, "params": [names[index] for index in group["params"]]} for group in state["param_groups"]
        ],
    }


def names_to_numbers(state: Mapping[str, Any], groups: list[list[str]], tied: Mapping[str, str]) -> dict[str, Any]:
    """Invert `numbers_to_names` for these groups. Saved groups have only the first name of a tied weight."""
    numbers = {name: index for index, name in enumerate(name for group in groups for name in group)}
    return {
        "state": {numbers[name]: slot for name, slot in state["state"].items()},
        "param_groups": [
            {**group_settings(state, tied.get(names[0], names[0])), "params": [numbers[name] for name in names]}
            for names in groups
        ],
    }
