"""Trains briefly on random tokens: `measure` times twenty steps for the planner. It needs no data and leaves no run."""

from __future__ import annotations

import dataclasses
import tempfile
import time
from datetime import UTC, datetime
from typing import Any

import lightning.pytorch as pl
import torch
from torch.utils.data import DataLoader, IterableDataset

from ..config import Config, has_layers
from ..models import Decoder, build_model, flops_per_token
from ..planning import WARM_STEPS, Measurement, decoder_fields, save_measurement, warm_worst
from ..runs import Reporter
from ..storage import open_store
from ..tokens import Batch
from ..training import (
    AtStep,
    CausalLM,
    choose_loss,
    device_name,
    explaining_memory,
    make_module,
    make_trainer,
    plan_training,
    with_precision,
)


@dataclasses.dataclass(frozen=True)
class TimedSteps:
    """A measurement, and the seconds of each step behind it."""

    measurement: Measurement
    seconds: list[float]


def measure(config: Config, reporter: Reporter, steps: int = WARM_STEPS.stop) -> TimedSteps:
    """Time the configuration on one device, and save the result where the planner finds it."""
    config = shortened(config, steps)
    plan = plan_training(config)
    cuda = plan.device == "cuda"
    if cuda:
        torch.cuda.reset_peak_memory_stats()
    clock = fit_random_tokens(config, reporter)
    measured = Measurement(
        device=device_name(plan.device),
        gpus=1,
        model=config.model.name,
        decoder=decoder_fields(config.model) if has_layers(config.model) else None,
        sequence_length=config.trainer.sequence_length,
        micro_batch=config.trainer.micro_sequences,
        accumulation=plan.micro_batches,
        preset="single",
        precision=config.trainer.compute_precision,
        path=choose_loss(config, plan.device).kind,
        checkpointing=config.trainer.activation_checkpointing == "full",
        step_seconds=warm_worst(clock.seconds),
        peak_bytes=torch.cuda.max_memory_allocated() if cuda else None,
        date=datetime.now(UTC).date().isoformat(),
        torch=torch.__version__,
        graphs=config.trainer.cuda_graphs != "off" and not config.loader.separate_documents,
        selective=config.trainer.activation_checkpointing == "selective",
        fp8=config.trainer.fp8 != "off",
    )
    save_measurement(measured)
    return TimedSteps(measured, clock.seconds)


def time_steps(config: Config, reporter: Reporter) -> list[float]:
    """Return the seconds of each of twenty steps of the configuration on one device."""
    return fit_random_tokens(shortened(config, WARM_STEPS.stop), reporter).seconds


def shortened(config: Config, steps: int) -> Config:
    """Return the same training on one device for `steps` steps, without validation, samples, checkpoints and logs."""
    single = dataclasses.replace(config.parallel, name="single", pipeline=1, replicate=1, shard=1, context=1, tensor=1)
    trainer = dataclasses.replace(
        with_precision(config).trainer,
        steps=steps,
        tokens=None,
        batch_schedule=[],
        stop_at_step=None,
        validate_every=None,
        sample_every=None,
        checkpoint_every=None,
        loggers=[],
    )
    return dataclasses.replace(config, trainer=trainer, parallel=single)


def fit_random_tokens(config: Config, reporter: Reporter) -> StepClock:
    """Train through Lightning as `skytrain train` does, on one device."""
    plan = plan_training(config)
    module = make_module(config, plan, build_model(config.model, seed=config.seed), reporter.note)
    clock = StepClock(reporter)
    tokens = RandomTokens(config, plan.total_steps * plan.micro_batches)
    with tempfile.TemporaryDirectory(prefix="skytrain-bench-") as scratch:
        trainer = make_trainer(config, plan, open_store(scratch), [clock], [])
        with explaining_memory(config, plan, module):
            try:
                trainer.fit(module, DataLoader(tokens, batch_size=None))
            except SystemExit as leaving:
                # Lightning exits with 1, a crash's code, where it is interrupted.
                if isinstance(leaving.__context__, KeyboardInterrupt):
                    raise KeyboardInterrupt from None
                raise
    return clock


def step_flops_per_token(config: Config) -> int:
    """Return the FLOPs per token of the configured model, for the built-in decoder without allocating weights."""
    if has_layers(config.model):
        with torch.device("meta"):
            return flops_per_token(Decoder(config.model), config.trainer.sequence_length)
    return flops_per_token(build_model(config.model, seed=config.seed), config.trainer.sequence_length)


class RandomTokens(IterableDataset[Batch]):
    """Batches of the right shape; the time of a step does not depend on the text."""

    def __init__(self, config: Config, count: int) -> None:
        self._shape = (config.trainer.micro_sequences, config.trainer.sequence_length + 1)
        self._vocab_size, self._count, self._seed = config.model.vocab_size, count, config.seed
        # Any token may begin documents, if they are separated.
        self._begin = config.tokenizer.vocab_size - 1 if config.loader.separate_documents else None

    def __iter__(self) -> Any:
        generator = torch.Generator().manual_seed(self._seed)
        for _ in range(self._count):
            windows = torch.randint(self._vocab_size, self._shape, generator=generator)
            yield Batch(windows, document_starts=None if self._begin is None else windows[:, :-1] == self._begin)


class StepClock(AtStep):
    """A clock of optimizer steps, including the device's work."""

    def __init__(self, reporter: Reporter) -> None:
        self._reporter = reporter
        self._last = 0.0
        self.first_at = 0.0  # when the first step was done
        self.seconds: list[float] = []

    def on_train_start(self, trainer: pl.Trainer, module: Any) -> None:
        super().on_train_start(trainer, module)
        self._last = time.perf_counter()

    def at_step(self, trainer: pl.Trainer, module: CausalLM, step: int) -> None:
        if module.device.type == "cuda":
            torch.cuda.synchronize()
        now = time.perf_counter()
        self.seconds.append(now - self._last)
        self.first_at = self.first_at or now
        self._last = now
        self._reporter.progress("measure", step, trainer.max_steps, f"{self.seconds[-1] * 1e3:.0f} ms")
