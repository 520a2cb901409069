"""DeepSpeed's ZeRO as a Lightning strategy, with Skytrain's model, optimizer, clipping and checkpoints."""

from __future__ import annotations

import argparse
import importlib
import io
import logging
import shutil
import tempfile
import warnings
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext, redirect_stdout
from pathlib import Path
from typing import Any, cast

import lightning.pytorch as pl
import torch
import torch.distributed as dist
from lightning.pytorch.utilities.rank_zero import rank_zero_warn
from torch import Tensor, nn

from ..checkpoints import (
    CLASSES,
    MODULE,
    CheckpointError,
    DeepSpeedCheckpoint,
    SaveFailed,
    SaveOptions,
    SaveTarget,
    StoreCheckpointIO,
    ZeroLayout,
    open_deepspeed,
    read_file,
    save_files,
    split_checkpoint,
)
from ..config import set_default
from ..models import InitialValues
from . import state
from .apply import blocks_of, recompute
from .deepspeed_disk import through_memory
from .deepspeed_setup import ZeroSettings, cpu_adam, engine_config, load_operation
from .deepspeed_state import ADAM_SETTINGS, NamedState, partition_sizes, put_state, read_named_state
from .lightning_internals import DeepSpeedBase, ends_step, set_module_device

TAG = "zero"  # DeepSpeed's name for the only checkpoint in a folder


class ZeroStrategy(DeepSpeedBase):
    """ZeRO-1, -2 and -3, optionally with state in host memory or on a disk.

    Lightning's strategy is for GPUs and creates its process group; here the group exists already, and a CPU serves too.
    A model on the meta device has `initial_values(name, shape)`, of which each rank keeps its part.
    """

    def __init__(self, settings: ZeroSettings) -> None:
        _quieten()
        super().__init__(config={"zero_optimization": {"stage": settings.stage}})  # the rest follows from the model
        self.settings = settings
        self._linear = nn.functional.linear
        self._saves = 0
        self.adapted_optimizer: Callable[..., torch.optim.Optimizer] | None = None  # asked for by the module
        self._group: Any = None  # over the CPU, for checkpoints

    # Lightning's own versions are for GPUs, and create the process group.

    def setup_environment(self) -> None:
        assert self.accelerator is not None
        self.accelerator.setup_device(self.root_device)
        self.setup_distributed()

    def setup_distributed(self) -> None:
        import deepspeed

        self.set_world_ranks()
        # On a CPU DeepSpeed would compile collectives over shared memory, which takes minutes; gloo has them.
        deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
        set_default("LOCAL_RANK", str(self.local_rank))  # DeepSpeed reads it in a single process too
        deepspeed.init_distributed(dist_backend=dist.get_backend(), auto_mpi_discovery=False, verbose=False)

    def make_engine(self, model: Any, optimizer: Any, lr_scheduler: Any) -> tuple[Any, Any]:
        import deepspeed
        import deepspeed.runtime.bf16_optimizer

        deepspeed.runtime.bf16_optimizer.see_memory_usage = _do_nothing  # which prints
        engine, zero_optimizer, _, _ = deepspeed.initialize(
            args=argparse.Namespace(device_rank=self.local_rank),
            config=self.config,
            model=model,
            model_parameters=[parameter for parameter in model.parameters() if parameter.requires_grad],
            optimizer=optimizer,
            lr_scheduler=lr_scheduler,
            dist_init_required=False,
        )
        return engine, zero_optimizer

    def teardown(self) -> None:
        """Tear down without Lightning's method, which would move sharded parameters to the CPU."""
        nn.functional.linear = self._linear  # ZeRO-3 replaces it for the whole process
        self.precision_plugin.teardown()
        assert self.accelerator is not None
        self.accelerator.teardown()
        self.checkpoint_io.teardown()

    # From a whole model to what this rank holds.

    def setup(self, trainer: pl.Trainer) -> None:
        module: Any = self.lightning_module
        model: nn.Module = module.model
        self._configure(model)
        if self.settings.offload_folder:
            load_operation("AsyncIOBuilder")
        recompute(blocks_of(model), self.settings.recompute)
        # Created while parameters have their shapes, by which they are grouped: ZeRO-3 removes them.
        outline = module.build_optimizer(fused=False)
        groups = state.names_in_groups(outline, dict(model.named_parameters()))
        exact = self._exact_weights(model)
        self._give_weights(model)
        self.adapted_optimizer = lambda *, fused: self._optimizer(outline, groups, model, fused)
        set_module_device(module, self.root_device)  # read when the optimizer is created
        super().setup(trainer)
        if self.settings.bf16:
            # The engine has made its float32 weights from bf16 ones.
            self._put(NamedState(exact))

    def _configure(self, model: nn.Module) -> None:
        whole = sum(parameter.numel() for parameter in model.parameters())
        blocks = [sum(parameter.numel() for parameter in block.parameters()) for block in blocks_of(model)]
        vectors = max((parameter.numel() for parameter in model.parameters() if parameter.ndim < 2), default=0)
        self.config = engine_config(self.settings, block_elements=max(blocks, default=whole), vector_elements=vectors)

    def _exact_weights(self, model: nn.Module) -> InitialValues:
        """Return the initial values in float32, by the engine's names."""
        given = {
            MODULE + name: parameter.detach().clone()
            for name, parameter in model.named_parameters()
            if self.settings.bf16 and not parameter.is_meta
        }

        def value(name: str, shape: torch.Size) -> Tensor:
            if name in given:
                return given[name]
            return _initial_values(model)(name.removeprefix(MODULE), shape)

        return value

    def _give_weights(self, model: nn.Module) -> None:
        """Put parameters on their device, with initial values for those on the meta device.

        Under ZeRO-3 they are sharded one block at a time, so that no rank ever holds them all.
        """
        originals = dict(model.named_parameters())  # kept until the end: a new parameter must not get an old one's id
        names = {id(parameter): name for name, parameter in originals.items()}
        made: dict[int, nn.Parameter] = {}
        swapper: Any = None  # shared by all blocks: each new one would start with an empty folder

        def give(part: nn.Module) -> None:
            nonlocal swapper
            for owner in part.modules():
                for leaf, old in owner._parameters.items():
                    if old is not None and id(old) in names:
                        if id(old) not in made:
                            made[id(old)] = self._placed(model, names[id(old)], old)
                        owner._parameters[leaf] = made[id(old)]
            if self.settings.stage == 3:
                import deepspeed

                divided = deepspeed.zero.Init(
                    module=part, config_dict_or_path=self._config_for_dividing(), param_swapper=swapper
                )
                swapper = divided.param_swapper

        for block in blocks_of(model):
            give(block)
        give(model)

    def _config_for_dividing(self) -> dict[str, Any]:
        assert isinstance(self.config, dict)
        return {**self.config, "bf16": {"enabled": self.settings.bf16}}

    def _placed(self, model: nn.Module, name: str, old: nn.Parameter) -> nn.Parameter:
        value = _initial_values(model)(name, old.shape) if old.is_meta else old.detach()
        # The engine casts weights to bf16, but not those that were sharded before.
        lowered = self.settings.bf16 and self.settings.stage == 3
        value = value.to(self.root_device, torch.bfloat16 if lowered else torch.float32)
        return nn.Parameter(value, requires_grad=old.requires_grad)

    def _optimizer(self, outline: Any, groups: list[list[str]], model: nn.Module, fused: bool) -> torch.optim.Optimizer:
        """Return the outlined optimizer, with the current parameters."""
        named = dict(model.named_parameters())
        for group, names in zip(outline.param_groups, groups, strict=True):
            group["params"] = [named[name] for name in names]
            if fused and "fused" in group:
                group["fused"] = True
                group["foreach"] = False
        if not self.settings.cpu_offload:
            return outline
        kept = [{key: group[key] for key in ("params", *ADAM_SETTINGS)} for group in outline.param_groups]
        found: torch.optim.Optimizer = cpu_adam()(kept, adamw_mode=True)
        return found

    # Steps.

    @property
    def clips_gradients(self) -> bool:
        """Whether the strategy clips gradients itself: the engine does within its step, and knows the norm after it."""
        return True

    def backward(self, closure_loss: Tensor, optimizer: Any, *args: Any, **kwargs: Any) -> Tensor:
        # Lightning has divided the loss by the micro-batches of a step; the engine would do so again.
        return super().backward(closure_loss, optimizer, *args, scale_wrt_gas=False, **kwargs)

    def optimizer_step(self, optimizer: Any, closure: Callable[[], Any], model: Any = None, **kwargs: Any) -> Any:
        """Step the engine, which updates the weights after a step's last micro-batch if gradients are finite."""
        result = super().optimizer_step(optimizer, closure, model, **kwargs)
        module: Any = self.lightning_module
        if ends_step(module.trainer):
            norm = self.deepspeed_engine.get_global_grad_norm()
            module.must_skip_update(torch.as_tensor(norm, dtype=torch.float32))
        return result

    def most_rows(self, rows: int) -> int:
        """Return the rows that a validation batch needs on every rank, so that ranks make the same collectives.

        Under ZeRO-3 every call of the head gathers its weights, and with a chunked loss the number of calls follows
        from the number of rows.
        """
        model: Any = self.lightning_module.model  # type: ignore[union-attr]
        loss_settings = getattr(model, "loss_settings", None)
        if self.settings.stage < 3 or loss_settings is None or loss_settings.chunk_tokens is None:
            return rows
        most = torch.tensor(rows)
        dist.all_reduce(most, op=dist.ReduceOp.MAX)
        return int(most)

    # Checkpoints: writes DeepSpeed's format, which the same preset on as many ranks reads; reads Skytrain's format too.

    def lightning_module_state_dict(self) -> dict[str, Any]:
        return {}

    def optimizer_state(self, optimizer: Any) -> dict[str, Any]:
        return {"state": {}, "param_groups": []}

    @property
    def _io(self) -> StoreCheckpointIO:
        assert isinstance(self.checkpoint_io, StoreCheckpointIO)
        return self.checkpoint_io

    @property
    def _layout(self) -> ZeroLayout:
        return ZeroLayout(
            self.settings.stage, self.world_size, self.settings.bf16, "cpu" if self.settings.cpu_offload else ""
        )

    def _engine_state(self) -> AbstractContextManager[None]:
        """Return the context in which the engine saves or loads."""
        return through_memory(self.deepspeed_engine) if self.settings.offload_folder else nullcontext()

    def save_checkpoint(self, checkpoint: dict[str, Any], filepath: Any, storage_options: Any | None = None) -> None:
        if self._group is None and self.world_size > 1:
            self._group = dist.new_group(backend="gloo")
        self._saves += 1
        rest = split_checkpoint({**checkpoint, "optimizer_states": []})
        options = storage_options or SaveOptions()
        with tempfile.TemporaryDirectory(prefix="skytrain-deepspeed-") as scratch:
            self._check_room(Path(scratch))
            with self._engine_state():
                self.deepspeed_engine.save_checkpoint(scratch, tag=TAG, save_latest=False)
            target = SaveTarget(
                store=self._io.save_store, key=str(filepath), number=self._saves, options=options, group=self._group
            )
            save_files(target, Path(scratch), rest, self._layout, rank_zero_warn)

    def _check_room(self, folder: Path) -> None:
        """Raise on all ranks if one has too little disk space: if it failed later, the others would wait for ever."""
        held = sum(partition_sizes(self.deepspeed_engine.optimizer, self.settings.stage))
        weights = sum(parameter.numel() * parameter.element_size() for parameter in self.deepspeed_engine.parameters())
        needed = 12 * held + weights
        free = shutil.disk_usage(folder).free
        short = torch.tensor(int(free < needed))
        dist.all_reduce(short, op=dist.ReduceOp.MAX, group=self._group)
        if short:
            raise SaveFailed(
                f"a rank has too little disk space in {folder.parent} for its part of a DeepSpeed checkpoint, about {needed} bytes; "
                f"rank {self.global_rank} has {free}\n  free some, or set TMPDIR to a larger disk"
            )

    def load_checkpoint(self, checkpoint_path: Any, weights_only: bool | None = None) -> dict[str, Any]:
        opened = open_deepspeed(self._io.store, str(checkpoint_path))
        if opened is None:
            found = self._io.load_checkpoint(checkpoint_path)
            model: Any = self.lightning_module.model  # type: ignore[union-attr]
            self._put(read_named_state(model, found["state_dict"], found["optimizer_states"]))
            return {**found, "state_dict": {}, "optimizer_states": []}
        self._check_layout(opened, str(checkpoint_path))
        classes = {name: _class(name) for name in CLASSES}
        self.deepspeed_engine.checkpoint_engine.load = lambda path, map_location=None: read_file(
            Path(path), classes, mapped=self.settings.offload_folder is not None
        )
        with tempfile.TemporaryDirectory(prefix="skytrain-deepspeed-") as scratch:
            opened.fetch(Path(scratch) / TAG, rank=self.global_rank)
            with redirect_stdout(io.StringIO()), self._engine_state():  # some of its optimizers print
                self.deepspeed_engine.load_checkpoint(scratch, tag=TAG, load_lr_scheduler_states=False)
        return {**opened.saved.rest(), "state_dict": {}, "optimizer_states": [], "random": opened.saved.random}

    def _check_layout(self, opened: DeepSpeedCheckpoint, key: str) -> None:
        """Raise unless the same preset on as many ranks wrote the checkpoint."""
        if opened.layout != self._layout:
            raise CheckpointError(
                f"{self._io.store.url(key)} is in DeepSpeed's own format, of {opened.layout}; this run is {self._layout}\n"
                "  convert it, so that every mode can resume from it: skytrain checkpoints convert"
            )

    def _put(self, named: NamedState) -> None:
        with redirect_stdout(io.StringIO()), self._engine_state():
            put_state(self.deepspeed_engine, self.settings.stage, named, plain_steps=self.settings.cpu_offload)


def _class(path: str) -> Any:
    module, _, name = path.rpartition(".")
    return getattr(importlib.import_module(module), name)


def _initial_values(model: nn.Module) -> InitialValues:
    found: Any = getattr(model, "initial_values", None)
    assert found is not None, "a model on the meta device needs initial values"
    return cast(InitialValues, found)


def _do_nothing(*_: Any, **__: Any) -> None:
    return


def _quieten() -> None:
    """Silence DeepSpeed's messages about its components."""
    set_default("DS_LOG_LEVEL", "warning")
    logging.getLogger("DeepSpeed").setLevel(logging.WARNING)
    warnings.filterwarnings("ignore", ".*torch.distributed.*_tensor. is deprecated.*")
