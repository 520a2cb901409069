"""The pieces of a training, each made from the configuration: its data, what it says of itself, what is written at each step."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import nn

from ..config import Config, SkytrainError, format_count, uses_deepspeed, uses_process_group
from ..evaluation import Samples, Sampling, ValidationLoss
from ..jobs import JoinedJob
from ..models import flops_per_token
from ..planning import device_peak
from ..runs import Meter, Reporter, RunRecord
from ..storage import Store
from ..tokens import Prepared, TokenDataModule, Tokenizer, open_training_data
from .callbacks import StepLog
from .evaluations import Scheduled
from .factory import TrainingPlan
from .schedules import warmup_steps
from .services import Beside


def make_data(
    config: Config,
    plan: TrainingPlan,
    store: Store,
    prepared: Prepared,
    mixture: Mapping[str, Prepared],
    tokenizer: Tokenizer,
) -> TokenDataModule:
    if config.trainer.validate_every and prepared.validation is None:
        raise SkytrainError(
            f"{store.url(prepared.folder)} has no validation split to validate on\n  prepare with a larger data.validation_fraction, or set trainer.validate_every=null"
        )
    opened = open_training_data(
        store,
        config.loader,
        prepared,
        mixture,
        tokenizer,
        vocab_size=config.model.vocab_size,
        batch_sequences=plan.batch_sequences,
        validate=prepared.validation is not None,
    )
    return TokenDataModule(
        opened.train,
        opened.validation,
        sequence_length=config.trainer.sequence_length,
        micro_batch=plan.micro_batch,
        batch_sequences=plan.batch_sequences,
        total_steps=plan.total_steps,
        seed=config.seed,
        workers=config.trainer.workers,
        validation_tokens=config.trainer.validate_tokens,
        shuffle=config.loader.shuffle,
        block_shards=config.loader.block_shards,
        phases=opened.phases,
    )


def describe(
    config: Config,
    plan: TrainingPlan,
    record: RunRecord,
    prepared: Prepared,
    data: TokenDataModule,
    model: nn.Module,
    job: JoinedJob,
    begins: str,
) -> list[tuple[str, str]]:
    """Every setting that matters, before the first step."""
    trainer, tokens = config.trainer, plan.batch_tokens * plan.total_steps
    per_token = flops_per_token(model, trainer.sequence_length)
    devices = f"{plan.mesh.data} ranks x " if plan.mesh.data > 1 else ""
    through = f"{plan.micro_batch // trainer.micro_sequences} x " if plan.mesh.pipeline > 1 else ""
    accumulation = (
        f"{devices}{plan.micro_batches} x {through}{trainer.micro_batch} sequences of {trainer.sequence_length}"
    )
    stop = f", stopping at {plan.stop_step}" if plan.stop_step < plan.total_steps else ""
    reached = data.blend.epochs(plan.batch_sequences * plan.total_steps)
    epochs = ", ".join(
        f"{count:.2f}" + (f" of {name}" if config.loader.mixture else "") for name, count in reached.items()
    )
    sources = " + ".join(data.blend.names) if config.loader.mixture else config.data.name
    warmup, configured = warmup_steps(config.lr_schedule, plan.total_steps), config.lr_schedule.warmup_steps
    shortened = f"{warmup} step{'s' * (warmup > 1)}: lr_schedule.warmup_steps={configured} is more than the run's {plan.total_steps}"
    mesh = f"{config.parallel.name} x {plan.ranks.world_size}" if uses_deepspeed(config) else str(plan.mesh)
    rows = [
        ("model", f"{config.model.name}, {record.parameters:,} parameters, vocabulary {config.model.vocab_size:,}"),
        (
            "data",
            f"{sources}, {format_count(data.blend.tokens)} tokens, {data.blend.summary()}",
        ),
        ("tokenizer", f"{prepared.tokenizer_id}, {prepared.train.tokenizer.vocab_size} tokens"),
        ("steps", f"{plan.total_steps}{stop}"),
        ("batch", f"{plan.batch_tokens} tokens = {accumulation}"),
        ("tokens", f"{format_count(tokens)}, {epochs} epochs"),
        ("compute", f"{format_count(per_token)}FLOP a token, {per_token * tokens:.2e} FLOP in all"),
        (
            "optimizer",
            f"{config.optimizer.name}, lr {config.optimizer.lr:g} ({config.lr_schedule.name}, {warmup} warmup), decay {config.optimizer.weight_decay:g}, clip {trainer.clip_norm}",
        ),
        *([("warm-up", shortened)] if warmup != configured else []),
        (
            "device",
            f"{record.hardware['device']}, {trainer.compute_precision}{', compiled' if trainer.compile else ''}",
        ),
        *([("mesh", f"{mesh} on {plan.ranks.nodes} node(s)")] if uses_process_group(config) else []),
        *([("network", job.network.summary())] if job.network and plan.ranks.world_size > 1 else []),
        ("seed", str(config.seed)),
    ]
    return [*rows, ("goes on", f"from {begins}")] if begins else rows


def make_step_log(config: Config, plan: TrainingPlan, model: nn.Module, side: Beside, meter: Meter) -> StepLog:
    peak = device_peak(torch.cuda.get_device_name()) if plan.device == "cuda" else None

    def write(step: int, record: Mapping[str, float]) -> None:
        side.metrics.write(step, record)
        if side.cloudwatch is not None:
            side.cloudwatch.metrics(step, record)

    return StepLog(
        side.reporter,
        write,
        meter,
        every=config.trainer.log_every,
        batch_tokens=plan.batch_tokens,
        micro_batches=plan.micro_batches,
        flops_per_token=flops_per_token(model, config.trainer.sequence_length),
        peak_flops=peak * plan.ranks.world_size if peak else None,
    )


def make_evaluations(
    config: Config, data: TokenDataModule, tokenizer: Tokenizer, reporter: Reporter, *, missed_validation: bool
) -> list[Scheduled]:
    """What is measured during training, and when. A run with a validation split ends with a validation loss."""
    trainer, found = config.trainer, []
    if data.validation_windows:
        loss = ValidationLoss(data.val_dataloader)
        found.append(Scheduled(loss, trainer.validate_every, at_end=True, at_start=missed_validation))
    if trainer.sample_every:
        sampling = Sampling(temperature=0.8, top_k=50, seed=config.seed)
        samples = Samples(tokenizer, trainer.sample_prompt, sampling, trainer.sample_tokens, reporter.note)
        found.append(Scheduled(samples, trainer.sample_every))
    return found
