"""Checkpoints of state that DeepSpeed keeps on a disk.

DeepSpeed's own saving copies the disk's files next to a checkpoint that lacks all tensors too small for the disk, and its
loading reads only those files: a resumed run would have other weights, and an optimizer whose step count starts again. Here
a checkpoint is the same as with offloading to memory, written one group of parameters at a time.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor


@contextmanager
def through_memory(engine: Any) -> Iterator[None]:
    """Make the engine save and load as if it offloaded to memory, within the context."""
    zero = engine.optimizer
    whole = zero.state_dict
    engine.zero_nvme_offload_optimizer = lambda: False  # which would copy the disk's files
    zero.state_dict = lambda: _read(zero, whole())
    zero.load_state_dict = lambda state_dict_list, load_optimizer_states=True, **_: _write(
        zero, state_dict_list[engine.global_rank], load_optimizer_states
    )
    try:
        yield
    finally:
        del engine.zero_nvme_offload_optimizer, zero.state_dict, zero.load_state_dict


def _read(zero: Any, state: dict[str, Any]) -> dict[str, Any]:
    """Return `state` with the tensors on the disk, memory-mapped, so that they need not fit into memory."""
    folder = Path(zero.optimizer_swapper.swap_folder)
    flats = list(state["fp32_flat_groups"])
    slots = dict(state["optimizer_state_dict"]["state"])
    for number in _on_disk(zero):
        name = flats[number].ds_id
        size = zero.fp16_partitioned_groups_flat_numel[number]
        flats[number] = _mapped(folder / f"{name}.tensor.swp", size)
        slots[number] = {
            slot: _mapped(folder / f"{slot}-{name}.tensor.swp", size) if isinstance(value, Tensor) else value
            for slot, value in slots.get(number, {}).items()
        }
    return {
        **state,
        "fp32_flat_groups": flats,
        "optimizer_state_dict": {**state["optimizer_state_dict"], "state": slots},
    }


def _mapped(path: Path, elements: int) -> Tensor:
    return torch.from_file(str(path), shared=False, size=int(elements), dtype=torch.float32)


@torch.no_grad()
def _write(zero: Any, state: Mapping[str, Any], with_optimizer: bool) -> None:
    """Load weights and optimizer from `state`, and write those that belong on the disk."""
    zero.loss_scaler = state["loss_scaler"]
    zero.overflow = state["overflow"]
    saved = state["optimizer_state_dict"]
    if with_optimizer:
        for group, settings in zip(zero.optimizer.param_groups, saved["param_groups"], strict=True):
            group.update({key: value for key, value in settings.items() if key != "params"})
    on_disk = _on_disk(zero)
    for number, flat in enumerate(zero.fp32_partitioned_groups_flat):
        if number in on_disk:
            zero._optimizer_states_and_gradient_swap_in(number)
        flat.data.copy_(state["fp32_flat_groups"][number])
        slots = zero.optimizer.state[flat]
        for slot, value in saved["state"].get(number, {}).items() if with_optimizer else ():
            if isinstance(value, Tensor) and slot in slots:
                slots[slot].data.copy_(value)
            else:
                slots[slot] = value.clone() if isinstance(value, Tensor) else value
        zero._reassign_or_swap_out_partitioned_parameters(number)
        if number in on_disk:
            zero._optimizer_states_and_gradient_swap_out(number)


def _on_disk(zero: Any) -> set[int]:
    """Return the groups on the disk: DeepSpeed keeps those below a megabyte in memory."""
    groups = range(len(zero.fp32_partitioned_groups_flat))
    return {number for number in groups if zero._swappable_optimizer_subgroup(number)}
