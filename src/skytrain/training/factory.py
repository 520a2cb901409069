"""From a configuration to a Lightning Trainer: the plan with its sizes, the strategy, the module, the trainer."""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import lightning.pytorch as pl
import torch
from lightning.pytorch.loggers import Logger
from torch import nn

from ..checkpoints import StoreCheckpointIO
from ..config import (
    BatchSizes,
    Config,
    ConfigError,
    MissingExtra,
    Precision,
    WandbConfig,
    batch_sizes,
    make,
    resolve_mesh,
    step_batches,
    total_steps,
    uses_deepspeed,
    uses_mesh_strategy,
    uses_process_group,
)
from ..jobs import Ranks, RanksEnvironment
from ..models import (
    build_model,
    check_precision,
    choose_device_type,
    outline_model,
    resolve_precision,
)
from ..parallel import MeshStrategy, OneDevice, Replicas, Settings, check_deepspeed, quieten_lightning, zero_settings
from ..planning import Mesh
from ..storage import Store, register_fsspec
from .average import WeightAverage
from .garbage import KeepGarbageOut
from .guard import make_guard
from .losses import apply_fp8, choose_loss, find_device
from .memory import apply_memory_settings, grow_segments
from .step import CausalLM, Optimization


@dataclass(frozen=True)
class TrainingPlan:
    """The numbers that follow from a configuration on a given number of devices."""

    total_steps: int  # the schedule's horizon
    stop_step: int  # where training ends, the horizon or earlier
    batches: BatchSizes  # tokens of each step, over all devices
    micro_batch: int  # sequences that the loader gives a device at a time
    micro_batches: int  # that it gives a device in a step of trainer.batch_tokens
    device: str
    mesh: Mesh
    ranks: Ranks

    @property
    def batch_tokens(self) -> int:
        """Return the tokens of a step after the last phase of trainer.batch_schedule."""
        return self.batches.last

    @property
    def tokens(self) -> int:
        """Return the tokens of the whole schedule."""
        return self.batches.before(self.total_steps)

    def micro_batches_at(self, step: int) -> int:
        """Return the number of micro-batches that a device takes in step `step` (from 0)."""
        return self.batches.at(step) * self.micro_batches // self.batches.last


def plan_training(config: Config, ranks: Ranks | None = None) -> TrainingPlan:
    trainer, ranks = config.trainer, ranks or Ranks()
    steps = total_steps(config)
    device = choose_device(config)
    if device == "cuda":
        grow_segments()  # before anything uses the GPU
    mesh = resolve_mesh(config, ranks.world_size, ranks.nodes, find_device(device))
    together, runs = step_batches(config, mesh)
    if uses_deepspeed(config):
        check_deepspeed(config, device)
    return TrainingPlan(
        total_steps=steps,
        stop_step=min(steps, trainer.stop_at_step or steps),
        batches=batch_sizes(trainer),
        micro_batch=trainer.micro_sequences * together,
        micro_batches=runs,
        device=device,
        mesh=mesh,
        ranks=ranks,
    )


def choose_device(config: Config) -> str:
    """Return `cuda` or `cpu`; raise where it cannot compute in the configured precision."""
    device = choose_device_type(config.trainer.device)
    check_precision(device, config.trainer.precision)
    return device


def with_precision(config: Config, precision: Precision | None = None) -> Config:
    """Resolve `trainer.precision=auto` to `precision`, or to the best that this device computes in."""
    if config.trainer.precision != "auto":
        return config
    found = precision or resolve_precision(choose_device_type(config.trainer.device), "auto")
    return replace(config, trainer=replace(config.trainer, precision=found))


def device_name(device: str) -> str:
    return torch.cuda.get_device_name() if device == "cuda" else "cpu"


def outline(config: Config, *, start_weights: bool = True) -> nn.Module:
    """Return the model as its strategy needs it: on the meta device where a mesh will hold it in parts, since it
    may not fit whole.
    """
    if uses_mesh_strategy(config):
        return outline_model(config.model, config.seed, start_weights=start_weights)
    return build_model(config.model, seed=config.seed, start_weights=start_weights)


def make_strategy(config: Config, plan: TrainingPlan) -> Any:
    """Return the Lightning strategy for the plan's mesh."""
    if not uses_mesh_strategy(config):
        alone = OneDevice("cuda:0" if plan.device == "cuda" else "cpu")
        return Replicas(gradient_as_bucket_view=True) if uses_process_group(config) else alone
    if uses_deepspeed(config):
        from ..parallel import ZeroStrategy

        return ZeroStrategy(zero_settings(config, plan.device))
    together, _ = step_batches(config, plan.mesh)
    path = choose_loss(config, plan.device, plan.mesh)
    settings = Settings(
        sequence_length=config.trainer.sequence_length,
        micro_batch=config.trainer.micro_sequences,
        schedule=config.parallel.schedule,
        chunks=plan.mesh.chunks,
        micro_batches=together,
        context=plan.mesh.context,
        context_method=config.parallel.context_method,
        expert=plan.mesh.expert,
        dtype=torch.bfloat16 if config.trainer.compute_precision == "bf16-mixed" else torch.float32,
        reduce_once=config.parallel.reduce_once,
        recompute=config.trainer.activation_checkpointing,
        compile_blocks=path.kind == "compiled",
        kernels=path.kernels,
        cpu_offload=config.parallel.cpu_offload,
    )
    return MeshStrategy(plan.mesh, settings)


def make_average(config: Config, plan: TrainingPlan) -> WeightAverage | None:
    """Return the average of the weights that the run keeps."""
    trainer = config.trainer
    if trainer.ema_decay is None:
        return None
    return WeightAverage(trainer.ema_decay, max(1, round(trainer.ema_start * plan.total_steps)))


def make_module(config: Config, plan: TrainingPlan, model: nn.Module, tell: Callable[[str], None]) -> CausalLM:
    """Return the LightningModule, with the loss that `choose_loss` chooses; `tell` is given its label."""
    apply_memory_settings(model, config.trainer, by_mesh=uses_mesh_strategy(config))
    apply_fp8(config, plan.device, model, plan.mesh)
    path = choose_loss(config, plan.device, plan.mesh)
    optimization = Optimization(
        optimizer=config.optimizer,
        schedule=config.lr_schedule,
        total_steps=plan.total_steps,
        clip_norm=config.trainer.clip_norm,
        batches=plan.batches,
        average=make_average(config, plan),
    )
    module = CausalLM(model, optimization, loss=path.loss, guard=make_guard(config.trainer, tell))
    check_documents = getattr(model, "check_documents", None)
    if config.loader.separate_documents and check_documents is not None:
        check_documents()
    tell(f"compute: {path.label}")
    return module


def make_trainer(
    config: Config, plan: TrainingPlan, store: Store, callbacks: list[pl.Callback], loggers: list[Any]
) -> pl.Trainer:
    quieten_lightning()
    warnings.filterwarnings("ignore", ".*isinstance.treespec.*")  # torch's, of what Lightning calls
    if store.root.startswith("s3://"):
        register_fsspec(config.store)  # for callbacks of users that give Lightning an s3:// path
    strategy = make_strategy(config, plan)
    meshed = isinstance(strategy, MeshStrategy)
    spread = uses_mesh_strategy(config)
    together = not isinstance(strategy, OneDevice)
    if config.trainer.deterministic and plan.device == "cuda":
        # Bit-identical steps on a GPU need torch's deterministic kernels; on a CPU all kernels are deterministic.
        torch.use_deterministic_algorithms(True, warn_only=True)
        # Our kernels write all the memory that they allocate.
        torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
    torch.set_float32_matmul_precision("high" if config.trainer.compute_precision != "32-true" else "highest")
    return pl.Trainer(
        accelerator="gpu" if plan.device == "cuda" else "cpu",
        devices=plan.ranks.local_size,
        num_nodes=plan.ranks.nodes,
        strategy=strategy,
        # The mesh lowers precision itself, where it gathers the weights, so that half as many bytes travel.
        precision="32-true" if meshed else config.trainer.compute_precision,
        max_steps=plan.stop_step,
        max_epochs=-1,
        accumulate_grad_batches=plan.micro_batches_at(0),
        limit_val_batches=0,  # `Evaluations` runs evaluators instead
        num_sanity_val_steps=0,
        use_distributed_sampler=False,  # the data module splits a global batch over the ranks
        logger=loggers,
        callbacks=[*callbacks, KeepGarbageOut()],
        plugins=[StoreCheckpointIO(store), *([RanksEnvironment(plan.ranks)] if together else [])],
        enable_checkpointing=False,  # `Checkpoints` saves to the store instead
        enable_progress_bar=False,
        enable_model_summary=False,
        inference_mode=not spread,  # a mesh may create in a validation what it keeps between steps
        log_every_n_steps=1,
    )


SHOWN_METRICS = ("val/loss", "train/loss")  # besides the hyperparameters
HYPERPARAMETERS = ("seed", "model", "data", "tokenizer", "loader", "optimizer", "lr_schedule", "parallel", "trainer")


def make_loggers(config: Config, run: str, tensorboard_folder: Path) -> list[Any]:
    loggers: list[Any] = []
    settings = flat_settings(config)
    if "tensorboard" in config.trainer.loggers:
        loggers.append(_tensorboard_logger(settings, tensorboard_folder))
    if "wandb" in config.trainer.loggers:
        loggers.append(_wandb_logger(config.wandb, run, tensorboard_folder.parent))
    for path in config.trainer.loggers:
        if "." in path:
            loggers.append(_own_logger(path))
    for logger in loggers:
        logger.log_hyperparams(settings)
    return loggers


def _tensorboard_logger(settings: Mapping[str, Any], folder: Path) -> Any:
    from lightning.pytorch.loggers import TensorBoardLogger
    from torch.utils.tensorboard.summary import hparams

    logger = TensorBoardLogger(save_dir=folder, name="", version="", default_hp_metric=False)
    # Lightning writes them for TensorBoard's page of hyperparameters only together with a value of a metric.
    for summary in hparams(dict(settings), dict.fromkeys(SHOWN_METRICS, 0.0)):
        logger.experiment.file_writer.add_summary(summary)
    return logger


def _wandb_logger(settings: WandbConfig, run: str, folder: Path) -> Any:
    try:
        import wandb  # noqa: F401
    except ImportError:
        raise MissingExtra("wandb", "wandb") from None
    from lightning.pytorch.loggers import WandbLogger

    return WandbLogger(
        project=settings.project,
        entity=settings.entity,
        group=settings.group,
        tags=settings.tags or None,
        name=run,
        id=run,
        save_dir=folder,
        resume="allow" if settings.mode == "online" else None,
        offline=settings.mode == "offline",
    )


def make_own_callbacks(config: Config) -> list[pl.Callback]:
    """Return the callbacks that `trainer.callbacks` names."""
    return [_own(one.target, one.args, "trainer.callbacks", pl.Callback) for one in config.trainer.callbacks]


def _own_logger(path: str) -> Logger:
    try:
        return cast(Logger, _own(path, {}, "trainer.loggers", Logger))
    except ConfigError as error:
        if not error.key.startswith("trainer.loggers."):
            raise
        raise ConfigError(
            "trainer.loggers",
            f"{path} needs the argument {error.key.rpartition('.')[2]}, and loggers are created without arguments",
            hint="write a subclass that gives it in __init__, and name that",
        ) from None


def _own(target: str, args: Mapping[str, Any], key: str, kind: type) -> Any:
    """Return an instance of a class that a setting names. Raises ConfigError unless it is of this kind."""
    made = make(target, args, key=key)
    if not isinstance(made, kind):
        raise ConfigError(key, f"{target} is not a {kind.__name__} of lightning.pytorch", hint="make it a subclass")
    return made


def flat_settings(config: Config) -> dict[str, Any]:
    """Return the settings that decide what is trained, by their keys, for loggers that keep hyperparameters."""
    flat: dict[str, Any] = {}

    def add(prefix: str, value: Any) -> None:
        if isinstance(value, Mapping):
            for name, each in value.items():
                add(f"{prefix}.{name}", each)
        else:
            flat[prefix] = value if isinstance(value, bool | int | float | str) else str(value)

    for group in HYPERPARAMETERS:
        value = getattr(config, group)
        add(group, value if isinstance(value, int) else dataclasses.asdict(value))
    return flat
