"""Checkpoints in DeepSpeed's format: commits, reading without executing pickles, conversion to Skytrain's format.

    step-000001000/3.7/deepspeed/mp_rank_00_model_states.pt                   and so on: DeepSpeed's files
    step-000001000/3.7/rank-00000.bin, manifest.json                          the trainer's state, as in Skytrain's checkpoints

DeepSpeed's files are pickles. torch's restricted unpickler reads them: it creates tensors, plain containers and the few
classes named here, and refuses everything else.
"""

from __future__ import annotations

import dataclasses
import hashlib
import logging
import pickle
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from ..config import STOPPED, SkytrainError, build, format_bytes, skytrain_cache_folder
from ..runs import Cause, claim_attempt, record_resume, write_outcome
from ..storage import Store, check_key, data_of, open_store
from .commits import committed_steps, find_commit, read_manifest, step_key
from .dcp import RankData
from .errors import ANOTHER, CheckpointError, DamagedCheckpoint, SaveFailed, damage_of_checkpoint, save_failure
from .manifest import DEEPSPEED, CheckpointManifest, SavedFile
from .parts import cpu_parts
from .saved import Saved, SavedTensors, open_checkpoint
from .saving import SaveTarget, TrainingState, write_and_commit, write_checkpoint
from .streamed import write_streamed
from .tree import split_tensors

log = logging.getLogger(__name__)

FILES = "deepspeed"
KEPT = ".pt"  # not the scripts that DeepSpeed adds: a checkpoint contains no code
MODULE = "model."  # the LightningModule's name for its network
SETTINGS = ("lr", "initial_lr", "betas", "eps", "weight_decay")
# The only classes in DeepSpeed's files apart from tensors and plain containers.
CLASSES = (
    "deepspeed.runtime.fp16.loss_scaler.LossScaler",
    "deepspeed.runtime.zero.config.ZeroStageEnum",
    "deepspeed.utils.tensor_fragment.fragment_address",
)


@dataclass(frozen=True)
class ZeroLayout:
    """The sharding of the state over the ranks that wrote a checkpoint."""

    stage: int
    world_size: int
    bf16: bool
    offload: str  # "" or "cpu"; "cpu" for a disk too, since the checkpoint is the same

    def __str__(self) -> str:
        offload = ", offloaded" if self.offload else ""
        return f"ZeRO-{self.stage} on {self.world_size} ranks, {'bf16' if self.bf16 else 'float32'}{offload}"


class _Ignored:
    """A stand-in for an object of DeepSpeed's that matters neither for weights nor for the optimizer."""

    def __init__(self, *_: Any, **__: Any) -> None:
        return

    def __setstate__(self, state: Any) -> None:
        return


def read_file(path: Path, classes: Mapping[str, Any] | None = None, *, mapped: bool = False) -> Any:
    """Read one of DeepSpeed's files. `classes` are by full name; a stand-in replaces each one that is not given.

    `mapped` leaves tensors in the file until they are read, for files that may not fit into memory.
    """
    known = [((classes or {}).get(name, _Ignored), name) for name in CLASSES]
    with _content_of(path.name), torch.serialization.safe_globals(known):  # type: ignore[arg-type]
        return torch.load(path, map_location="cpu", weights_only=True, mmap=mapped)


@contextmanager
def _content_of(where: str) -> Iterator[None]:
    """Report what goes wrong inside the block with DeepSpeed's files as damage: torch raises whatever they lead it to."""
    try:
        yield
    except SkytrainError:
        raise
    except (
        LookupError,
        ValueError,
        TypeError,
        AttributeError,
        ArithmeticError,
        RuntimeError,
        EOFError,
        pickle.PickleError,
    ) as error:
        said = next(iter(str(error).splitlines()), "") or type(error).__name__
        raise DamagedCheckpoint(
            f"{where} has contents that no DeepSpeed checkpoint has, and was not read: {said}\n"
            "  it was not made by Skytrain, or by a version of DeepSpeed that Skytrain does not support"
        ) from error


def save_files(
    target: SaveTarget, files: Path, state: TrainingState, layout: ZeroLayout, tell: Callable[[str], None]
) -> None:
    """Upload what DeepSpeed wrote below `files`, and save the trainer's state. Every rank must call this."""
    uploaded = _upload(target.store, target.folder, files, target.group)

    def amend(manifest: CheckpointManifest) -> CheckpointManifest:
        return dataclasses.replace(manifest, kind=DEEPSPEED, files={**manifest.files, **uploaded})

    facts = {"rest": state.rest, "deepspeed": dataclasses.asdict(layout)}
    write_and_commit(target, RankData(cpu_parts(state.tensors), facts, state.share), tell, amend)


def _upload(store: Store, folder: str, files: Path, group: Any) -> dict[str, SavedFile]:
    """Upload this rank's files and return those of all ranks. An error on one rank is raised on all."""
    mine: dict[str, SavedFile] = {}
    problem: SaveFailed | None = None
    try:
        for path in sorted(files.rglob("*")):
            if path.suffix == KEPT:
                name = f"{FILES}/{'/'.join(path.relative_to(files).parts[1:])}"  # without DeepSpeed's tag
                mine[name] = SavedFile(path.stat().st_size, store.upload(path, f"{folder}/{name}"))
    except SkytrainError as error:
        problem = save_failure(error)
    everyone: list[Any] = [(mine, problem)]
    if group is not None:
        everyone = [None] * dist.get_world_size(group)
        dist.all_gather_object(everyone, (mine, problem), group=group)
    for rank, (_, failure) in enumerate(everyone):
        if failure is not None:
            raise type(failure)(f"rank {rank}: {failure}")
    return {name: file for listed, _ in everyone for name, file in listed.items()}


@dataclass(frozen=True)
class DeepSpeedCheckpoint:
    """A committed checkpoint in DeepSpeed's format, opened."""

    saved: Saved
    layout: ZeroLayout
    files: Mapping[str, SavedFile]

    def fetch(self, into: Path, rank: int | None = None) -> None:
        """Download and verify the files that a rank reads, or all of them, under DeepSpeed's names."""
        self._fetch(into, lambda name: rank is None or _is_for(name, rank))

    def fetch_weights(self, into: Path) -> None:
        """Download and verify the files that hold the weights in float32: the optimizer's, and the first rank's model."""
        self._fetch(into, _has_weights)

    @property
    def weight_file_bytes(self) -> int:
        return sum(file.bytes for name, file in self.files.items() if _has_weights(name.removeprefix(f"{FILES}/")))

    def _fetch(self, into: Path, wanted: Callable[[str], bool]) -> None:
        store = self.saved.tensors.store
        folder = self.saved.tensors.folder
        for name, file in self.files.items():
            plain = name.removeprefix(f"{FILES}/")
            if wanted(plain):
                path = into / plain
                check_key(store.root, plain)
                path.parent.mkdir(parents=True, exist_ok=True)
                store.download(f"{folder}/{name}", path, sha256=file.sha256)


def _has_weights(name: str) -> bool:
    """Return whether `weights` reads the file."""
    return "optim_states" in name or name.startswith(("mp_rank_00_", "zero_pp_rank_0_mp_rank_00_"))


def _is_for(name: str, rank: int) -> bool:
    """Return whether a rank reads the file: its own, or one that belongs to no rank."""
    return "_pp_rank_" not in f"_{name}" or f"_rank_{rank}_" in name


def open_deepspeed(store: Store, key: str) -> DeepSpeedCheckpoint | None:
    """Return the checkpoint in the folder `key`, or None if it is not in DeepSpeed's format."""
    commit = find_commit(store, key)
    folder, manifest = read_manifest(store, commit)
    if manifest.kind != DEEPSPEED:
        return None
    files = {name: file for name, file in manifest.files.items() if name.startswith(f"{FILES}/")}
    saved = Saved(commit, SavedTensors(store, folder, manifest, ""), manifest.state)
    with damage_of_checkpoint(), data_of(store.url(folder), ANOTHER):
        layout: ZeroLayout = build(ZeroLayout, manifest.state["deepspeed"])
    return DeepSpeedCheckpoint(saved, layout, files)


def convert_deepspeed(store: Store, key: str, target_key: str, *, attempt: int = 0) -> None:
    """Convert the DeepSpeed checkpoint `key`: weights, optimizer, schedule, data position, random states.

    It needs memory for the entire state, in one process, but not DeepSpeed.
    """
    opened = _convertible(store, key)
    with tempfile.TemporaryDirectory(prefix="skytrain-deepspeed-") as scratch:
        opened.fetch(Path(scratch))
        with _content_of(opened.saved.tensors.url):
            named = merge(Path(scratch), opened.layout)
    tensors = {f"model/{name}": value for name, value in named.weights.items()}
    for name, slots in named.slots.items():
        tensors |= {f"optimizer/0/{name}/{slot}": value for slot, value in slots.items()}
    every = opened.saved.tensors
    tensors |= {f"random/{name}": value for name, value in every.below("random/").read().items()}
    tensors |= {f"state{name}": value for name, value in every.below("state").read().items()}
    share = {"groups": split_tensors([named.groups])[0]}
    write_checkpoint(store, target_key, TrainingState(tensors, opened.saved.state["rest"], share), attempt=attempt)


def open_weights(store: Store, key: str) -> Saved:
    """Open the committed checkpoint in the folder `key` to read its weights.

    Those of a checkpoint in DeepSpeed's format are converted into this machine's cache, once; the store is not changed.
    """
    opened = open_deepspeed(store, key)
    if opened is None:
        return open_checkpoint(store, key)
    commit = opened.saved.commit
    cache = cache_of(opened)
    cached = open_store(str(cache))
    name = step_key("weights", 0)  # runs may have the same weights at different steps
    if 0 not in committed_steps(cached, "weights"):
        log.warning("%s is in DeepSpeed's format: converting its weights, once, to %s", store.url(key), cache)
        _convert_weights(opened, SaveTarget(cached, name), cache)
    weights = open_checkpoint(cached, name)
    return Saved(commit, weights.tensors, weights.state)


def cache_of(opened: DeepSpeedCheckpoint) -> Path:
    """Return the folder for the converted weights, by what was read.

    The hash in the marker may be another by now: machines of the run may write it, and name the checkpoint of another run.
    """
    digest = hashlib.sha256(opened.saved.tensors.manifest.to_bytes()).hexdigest()
    return skytrain_cache_folder() / "deepspeed-weights" / digest


def _convert_weights(opened: DeepSpeedCheckpoint, target: SaveTarget, cache: Path) -> None:
    """Write the weights, one tensor in memory at a time."""
    cache.mkdir(parents=True, exist_ok=True)
    needed = opened.weight_file_bytes * 4 // 3  # the files hold weights and two moments; the weights are written again
    free = shutil.disk_usage(cache).free
    if free < needed:
        raise CheckpointError(
            f"{opened.saved.tensors.url} is in DeepSpeed's format, and converting it takes {format_bytes(needed)} of disk; "
            f"{cache} has {format_bytes(free)}\n  set SKYTRAIN_CACHE to a folder with more"
        )
    with tempfile.TemporaryDirectory(dir=cache, prefix="files-") as scratch:
        opened.fetch_weights(Path(scratch))
        with _content_of(opened.saved.tensors.url):
            named = weights(Path(scratch), opened.layout)
            write_streamed(target, ((f"model/{name}", value) for name, value in named), {})


def convert_newest(store: Store, run: str) -> int:
    """Convert the run's newest checkpoint from DeepSpeed's format in place, so that any mode can resume from it.

    The conversion claims an attempt, so that one still running can no longer commit. Returns the step.
    """
    steps = committed_steps(store, run)
    if not steps:
        raise CheckpointError(f"run {run!r} has no committed checkpoint yet")
    key = step_key(run, steps[-1])
    _convertible(store, key)
    attempt = claim_attempt(store, run)
    record_resume(store, run, attempt, steps[-1])
    convert_deepspeed(store, key, key, attempt=attempt)
    write_outcome(store, run, attempt, STOPPED, steps[-1], Cause("converted from DeepSpeed"))
    return steps[-1]


def _convertible(store: Store, key: str) -> DeepSpeedCheckpoint:
    opened = open_deepspeed(store, key)
    if opened is None:
        raise CheckpointError(f"{store.url(key)} is in Skytrain's format already; there is nothing to convert")
    return opened


@dataclass(frozen=True)
class Named:
    """Training state as unsharded tensors by parameter name."""

    weights: dict[str, Tensor]
    slots: dict[str, dict[str, Tensor]]
    groups: list[dict[str, Any]]


def weights(folder: Path, layout: ZeroLayout) -> Iterator[tuple[str, Tensor]]:
    """Yield the weights of DeepSpeed's files by name; the files stay on the disk."""
    states, shapes = _states(folder, layout, mapped=True)
    flat = "fp32_flat_groups" if layout.stage == 3 else "single_partition_of_fp32_groups"
    for number, group in enumerate(shapes):
        for name, tensor in _cut(layout)([state[flat][number] for state in states], group):
            yield _plain(name), tensor


def _states(
    folder: Path, layout: ZeroLayout, *, mapped: bool
) -> tuple[list[Mapping[str, Any]], list[Mapping[str, torch.Size]]]:
    """Return the optimizer's state of each rank, and the shapes of the parameters in each of its groups."""
    names = (f"*zero_pp_rank_{rank}_mp_rank_00_optim_states.pt" for rank in range(layout.world_size))
    states = [_one(folder, name, mapped=mapped)["optimizer_state_dict"] for name in names]
    first = "zero_pp_rank_0_mp_rank_00_model_states.pt" if layout.stage == 3 else "mp_rank_00_model_states.pt"
    return states, _one(folder, first, mapped=mapped)["param_shapes"]


Cut = Callable[[Sequence[Tensor], Mapping[str, torch.Size]], Iterator[tuple[str, Tensor]]]


def _cut(layout: ZeroLayout) -> Cut:
    return _cut_each if layout.stage == 3 else _cut_row


def merge(folder: Path, layout: ZeroLayout) -> Named:
    """Merge DeepSpeed's flat partitions of all ranks into unsharded tensors by name."""
    states, shapes = _states(folder, layout, mapped=False)
    cut = _cut(layout)
    if layout.stage == 3:
        flat_weights = [state["fp32_flat_groups"] for state in states]
        optimizers = [state["optimizer_state_dict"] for state in states]
    else:
        flat_weights = [state["single_partition_of_fp32_groups"] for state in states]
        optimizers = [state["base_optimizer_state"] for state in states]
    named = Named({}, {}, [])
    for number, group in enumerate(shapes):
        named.weights.update(_named(cut([flats[number] for flats in flat_weights], group)))
        slots = [optimizer["state"].get(number, {}) for optimizer in optimizers]
        for slot, value in slots[0].items():
            if isinstance(value, Tensor) and value.ndim:
                by_name = _named(cut([each[slot] for each in slots], group))
            else:
                by_name = {_plain(name): torch.as_tensor(float(value)) for name in group}
            for name, tensor in by_name.items():
                named.slots.setdefault(name, {})[slot] = tensor
    for settings in optimizers[0]["param_groups"]:
        names = [_plain(name) for number in settings["params"] for name in shapes[number]]
        named.groups.append({**{key: settings[key] for key in SETTINGS if key in settings}, "params": names})
    return named


def _one(folder: Path, pattern: str, *, mapped: bool) -> Any:
    paths = sorted(folder.glob(pattern))
    if len(paths) != 1:
        raise DamagedCheckpoint(f"the checkpoint has {len(paths)} files {pattern}, not one\n  use another checkpoint")
    return read_file(paths[0], mapped=mapped)


def _cut_row(partitions: Sequence[Tensor], shapes: Mapping[str, torch.Size]) -> Iterator[tuple[str, Tensor]]:
    """Yield the tensors of ZeRO-1 or -2: all parameters form one row, split evenly over the ranks, with padding last."""
    parts = [_flat(partition) for partition in partitions]
    each = parts[0].numel()
    start = 0
    for name, shape in shapes.items():
        stop = start + shape.numel()
        pieces = [
            part[max(0, start - number * each) : max(0, stop - number * each)] for number, part in enumerate(parts)
        ]
        yield name, torch.cat(pieces).view(shape)
        start = stop


def _cut_each(partitions: Sequence[Tensor], shapes: Mapping[str, torch.Size]) -> Iterator[tuple[str, Tensor]]:
    """Yield the tensors of ZeRO-3: each parameter is split evenly over the ranks, its last part padded."""
    start = 0
    for name, shape in shapes.items():
        each = -(-shape.numel() // len(partitions))
        whole = torch.cat([_flat(partition)[start : start + each] for partition in partitions])
        yield name, whole[: shape.numel()].view(shape).clone()
        start += each


def _flat(partition: Tensor) -> Tensor:
    """Return a partition as one row. One that repeats its bytes would be longer than its file, and fill the memory."""
    if not partition.is_contiguous():
        raise ValueError("a partition is not one row of numbers")
    return partition.detach().reshape(-1)


def _named(pairs: Iterator[tuple[str, Tensor]]) -> dict[str, Tensor]:
    return {_plain(name): tensor for name, tensor in pairs}


def _plain(name: str) -> str:
    return name.removeprefix(MODULE)
