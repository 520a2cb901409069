"""From a configuration to a Lightning Trainer: sizes first, then the pieces, then the trainer."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import torch

from ..checkpoints import StoreCheckpointIO
from ..config import Config, ConfigError, MissingExtra, total_steps
from ..storage import Store


@dataclass(frozen=True)
class TrainingPlan:
    """The numbers that follow from a configuration on a given number of devices."""

    total_steps: int  # the schedule's horizon
    stop_step: int  # where this run ends
    batch_sequences: int  # per optimizer step, over all devices
    micro_batches: int  # forward passes per device and step
    batch_tokens: int
    device: str


def plan_training(config: Config, world_size: int = 1) -> TrainingPlan:
    trainer = config.trainer
    batch_sequences = trainer.batch_tokens // trainer.sequence_length
    together = trainer.micro_batch * world_size
    if batch_sequences % together:
        raise ConfigError(
            "trainer.batch_tokens",
            f"{batch_sequences} sequences a step do not divide over {world_size} devices x {trainer.micro_batch} (trainer.micro_batch)",
        )
    steps = total_steps(config)
    return TrainingPlan(
        total_steps=steps,
        stop_step=min(steps, trainer.stop_at_step or steps),
        batch_sequences=batch_sequences,
        micro_batches=batch_sequences // together,
        batch_tokens=trainer.batch_tokens,
        device=choose_device(config),
    )


def choose_device(config: Config) -> str:
    """`cuda` or `cpu`; a request that this machine cannot meet is an error, not a quiet fallback."""
    wanted = config.trainer.device
    present = torch.cuda.is_available()
    if wanted == "cuda" and not present:
        raise ConfigError(
            "trainer.device", "'cuda' is asked for, but torch sees no GPU here", hint="try trainer.device=cpu"
        )
    device = "cuda" if present and wanted != "cpu" else "cpu"
    if (
        device == "cuda"
        and config.trainer.precision == "bf16-mixed"
        and not torch.cuda.is_bf16_supported(including_emulation=False)
    ):
        raise ConfigError(
            "trainer.precision",
            f"'bf16-mixed': {torch.cuda.get_device_name()} has no bf16",
            hint="try trainer.precision=32-true",
        )
    return device


def make_trainer(
    config: Config, plan: TrainingPlan, store: Store, callbacks: list[pl.Callback], loggers: list[Any]
) -> pl.Trainer:
    _quieten()
    if config.trainer.deterministic and plan.device == "cuda":
        # Bit-identical steps on a GPU need torch's deterministic kernels; on a CPU ours are so already.
        torch.use_deterministic_algorithms(True, warn_only=True)
    torch.set_float32_matmul_precision("high" if config.trainer.precision != "32-true" else "highest")
    validates = config.trainer.validate_every is not None
    return pl.Trainer(
        accelerator="gpu" if plan.device == "cuda" else "cpu",
        devices=1,
        precision=config.trainer.precision,
        max_steps=plan.stop_step,
        max_epochs=-1,
        accumulate_grad_batches=plan.micro_batches,
        val_check_interval=(config.trainer.validate_every or 1) * plan.micro_batches if validates else None,
        check_val_every_n_epoch=None if validates else 1,
        limit_val_batches=None if validates else 0,
        num_sanity_val_steps=0,
        use_distributed_sampler=False,  # ours splits a global batch over the ranks; Lightning's would shuffle it again
        logger=loggers,
        callbacks=callbacks,
        plugins=[StoreCheckpointIO(store)],
        enable_checkpointing=False,  # ours is a callback over the store
        enable_progress_bar=False,
        enable_model_summary=False,
        inference_mode=True,
        log_every_n_steps=1,
    )


def make_loggers(config: Config, run: str, tensorboard_folder: Path) -> list[Any]:
    loggers: list[Any] = []
    if "tensorboard" in config.trainer.loggers:
        from lightning.pytorch.loggers import TensorBoardLogger

        loggers.append(TensorBoardLogger(save_dir=tensorboard_folder, name="", version="", default_hp_metric=False))
    if "wandb" in config.trainer.loggers:
        try:
            import wandb  # noqa: F401
        except ImportError:
            raise MissingExtra("wandb", "wandb") from None
        from lightning.pytorch.loggers import WandbLogger

        loggers.append(
            WandbLogger(project="skytrain", name=run, id=run, save_dir=tensorboard_folder.parent, resume="allow")
        )
    return loggers


def _quieten() -> None:
    """Lightning's advice about workers, loaders and products is not news to a user of Skytrain."""
    import logging

    for name in (
        "lightning.pytorch.utilities.rank_zero",
        "lightning.pytorch.accelerators.cuda",
        "lightning.fabric.utilities.seed",
    ):
        logging.getLogger(name).setLevel(logging.WARNING)
    for pattern in (
        ".*does not have many workers.*",
        ".*dataloader is not resumable.*",
        ".*isinstance.treespec.*",
        ".*litlogger.*",
    ):
        warnings.filterwarnings("ignore", pattern)
