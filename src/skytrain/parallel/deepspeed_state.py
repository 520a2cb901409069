"""Load whole tensors by name into DeepSpeed's flat partitions."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from ..checkpoints import MODULE, AnotherModel, SavedTensors
from . import state

ADAM_SETTINGS = ("lr", "betas", "eps", "weight_decay")
Read = Callable[[str, torch.Size], Tensor]  # a parameter's whole value, or that of a slot of its optimizer state


@dataclass(frozen=True)
class NamedState:
    """Readers of whole values by name. Without `slots` the optimizer starts from scratch."""

    weight: Read
    slots: Mapping[str, Read] = field(default_factory=dict)
    steps: float = 0.0  # of the optimizer so far
    group_settings: Callable[[str], Mapping[str, Any]] = lambda name: {}  # of a parameter's group


def read_named_state(model: nn.Module, weights: SavedTensors, optimizers: list[dict[str, Any]]) -> NamedState:
    """Return the state in one of Skytrain's own checkpoints, by the engine's names."""
    tied = state.tied_names(model)

    def reader(saved: SavedTensors, slot: str = "") -> Read:
        def read(name: str, shape: torch.Size) -> Tensor:
            plain = name.removeprefix(MODULE)
            found = torch.empty(shape)
            saved.read_into([(tied.get(plain, plain) + slot, found)])
            return found

        return read

    if len(optimizers) != 1:
        raise AnotherModel(f"{weights.url} holds {len(optimizers)} optimizers; DeepSpeed has one")
    saved = optimizers[0]["tensors"]
    described = saved.described()
    slots = {path.rpartition("/")[2] for path in described} - {"step"}
    steps = torch.zeros(())
    counted = next((path for path in described if path.endswith("/step")), None)
    if counted is not None:
        saved.read_into([(counted, steps)])
    groups = state.merge_groups(optimizers[0]["groups"])

    def settings(name: str) -> Mapping[str, Any]:
        found = state.group_settings({"param_groups": groups}, name.removeprefix(MODULE))
        return {key: value for key, value in found.items() if key in (*ADAM_SETTINGS, "initial_lr")}

    return NamedState(reader(weights), {slot: reader(saved, f"/{slot}") for slot in slots}, float(steps), settings)


@dataclass(frozen=True)
class _Share:
    """This rank's part of each group of parameters."""

    rank: int
    world_size: int
    each_cut: bool  # ZeRO-3 splits each parameter, ZeRO-1 and -2 the row of all parameters

    def pieces(self, shapes: Mapping[str, torch.Size], size: int) -> Iterator[tuple[str, torch.Size, slice, int]]:
        """Yield name, shape, this rank's elements, and their start in this rank's partition of `size` elements."""
        start = 0
        for name, shape in shapes.items():
            count = math.prod(shape)
            if self.each_cut:
                each = -(-count // self.world_size)
                yield name, shape, slice(self.rank * each, min(count, (self.rank + 1) * each)), start
                start += each
            else:
                first = max(start, self.rank * size)
                last = min(start + count, (self.rank + 1) * size)
                if first < last:
                    yield name, shape, slice(first - start, last - start), first - self.rank * size
                start += count

    def flat(self, shapes: Mapping[str, torch.Size], size: int, read: Read) -> Tensor:
        found = torch.zeros(size)
        for name, shape, ours, begin in self.pieces(shapes, size):
            values = read(name, shape).reshape(-1)[ours]
            found[begin : begin + values.numel()] = values
        return found


@torch.no_grad()
def put_state(engine: Any, stage: int, named: NamedState, *, plain_steps: bool) -> None:
    """Set the engine's weights, and its optimizer state if there are slots, as loading a checkpoint does.

    One whole tensor is in memory at a time. `plain_steps`: the optimizer's step count is a number, not a tensor.
    """
    zero = engine.optimizer
    key = "optimizer_state_dict" if stage == 3 else "base_optimizer_state"
    share = _Share(engine.global_rank, engine.world_size, stage == 3)
    shapes = engine._get_zero_param_shapes()  # as written into its own checkpoints
    saved = zero.state_dict()
    flats = "fp32_flat_groups" if stage == 3 else "single_partition_of_fp32_groups"
    sizes = partition_sizes(zero, stage)
    saved[flats] = [share.flat(group, size, named.weight) for group, size in zip(shapes, sizes, strict=True)]
    if named.slots:
        count = int if plain_steps else torch.tensor  # one tensor for each group, since it is incremented in place
        slots = {
            number: {
                "step": count(named.steps),
                **{slot: share.flat(group, size, read) for slot, read in named.slots.items()},
            }
            for number, (group, size) in enumerate(zip(shapes, sizes, strict=True))
        }
        groups = [
            {**group, **named.group_settings(next(iter(shapes[group["params"][0]])))}
            for group in saved[key]["param_groups"]
        ]
        saved[key] = {"state": slots, "param_groups": groups}
    if stage == 3:
        zero.checkpoint_event_prologue()
    everyone = [saved if rank == share.rank else None for rank in range(share.world_size)]
    zero.load_state_dict(everyone, load_optimizer_states=bool(named.slots), load_from_fp32_weights=True)
    if stage == 3:
        zero.checkpoint_event_epilogue()  # gathers what is kept whole, and casts the rest
        return
    for name, parameter in engine.module.named_parameters():
        parameter.copy_(named.weight(name, parameter.shape))


def partition_sizes(zero: Any, stage: int) -> list[int]:
    """Return the sizes of the optimizer's float32 partitions, in elements."""
    if stage == 3:
        return [int(size) for size in zero.fp16_partitioned_groups_flat_numel]
    return [group["params"][0].numel() for group in zero.optimizer.param_groups]
