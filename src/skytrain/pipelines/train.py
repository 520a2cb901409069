"""Train: prepared tokens and a configuration in, a run with committed checkpoints out. The same call again continues it."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from ..checkpoints import committed_steps, step_key
from ..config import Config, SkytrainError, format_count
from ..evaluation.generate import generate
from ..models import flops_per_token
from ..parallel import Ranks, advice, uses_process_group
from ..planning import device_peak
from ..runs import (
    MetricsWriter,
    Reporter,
    RunRecord,
    Silent,
    claim_attempt,
    config_changes,
    load_run,
    run_name,
    save_run,
    write_outcome,
)
from ..runs.attempts import now
from ..runs.record import new_record, plain
from ..storage import Store, open_store
from ..tokens import (
    Prepared,
    TokenDataModule,
    Tokenizer,
    find_training_data,
    open_mixture,
    open_tokenizer,
    open_training_data,
)
from ..training.callbacks import Checkpoints, Profile, RandomState, Samples, StepLog, StopOnSignal, seed_of_rank
from ..training.factory import TrainingPlan, make_loggers, make_module, make_trainer, outline, plan_training
from ..training.module import CausalLM


@dataclass(frozen=True)
class Trained:
    """How a run stands after this attempt."""

    run: str
    url: str
    step: int
    total_steps: int
    outcome: str  # done, stopped (early, as asked) or interrupted
    metrics: dict[str, float]

    def summary(self) -> str:
        numbers = "".join(
            f" | {name} {self.metrics[name]:.4f}" for name in ("train/loss", "val/loss") if name in self.metrics
        )
        word = {
            "done": "trained",
            "stopped": "stopped as asked",
            "interrupted": "interrupted; the same command continues",
        }[self.outcome]
        return f"{self.run}: {word} at step {self.step}/{self.total_steps}{numbers}\n  {self.url}"


def train(config: Config, reporter: Reporter) -> Trained:
    """On every rank of a job alike; the first one keeps the record and speaks."""
    ranks = Ranks.from_environment()
    plan = plan_training(config, ranks)
    if not uses_process_group(config):
        return _train(config, plan, ranks, reporter)
    with ranks.joined(plan.device):
        return _train(config, plan, ranks, reporter if ranks.first else Silent())


def _train(config: Config, plan: TrainingPlan, ranks: Ranks, reporter: Reporter) -> Trained:
    store = open_store(config.store)
    prepared = ranks.first_does(lambda: find_training_data(store, config))
    tokenizer = open_tokenizer(config.tokenizer, store, prepared.tokenizer_id)
    mixture = open_mixture(store, config.loader, prepared.tokenizer_id)
    data = _data(config, plan, store, prepared, mixture, tokenizer)
    torch.manual_seed(config.seed if ranks.first else seed_of_rank(str(config.seed).encode(), ranks.rank))
    model = outline(config)
    record = ranks.first_does(lambda: _open_run(config, store, [prepared, *mixture.values()], model, plan))
    resumed_from = ranks.first_does(lambda: max(committed_steps(store, record.name), default=0))
    if resumed_from >= plan.stop_step:
        reporter.note(f"{record.name} is at step {resumed_from} already: nothing to do")
        return Trained(
            record.name,
            store.url(f"runs/{record.name}"),
            resumed_from,
            plan.total_steps,
            _outcome(resumed_from, plan, None),
            {},
        )
    reporter.table(f"run {record.name}", describe(config, plan, record, prepared, data, model, resumed_from))
    for line in advice(plan.mesh, ranks.local_size):
        reporter.note(f"warning: {line}")
    attempt = ranks.first_does(lambda: _begin(store, record))
    module = make_module(config, plan, model, reporter.note)
    log = _step_log(config, plan, store, record.name, attempt, model, reporter)
    stop = StopOnSignal(reporter, ranks)
    every, keep = config.trainer.checkpoint_every, config.trainer.keep_checkpoints
    callbacks = [
        stop,
        log,
        *_samples(config, module, tokenizer, reporter),
        *([Profile(store, record.name, reporter)] if config.trainer.profile and ranks.first else []),
        RandomState(ranks),
        Checkpoints(store, record.name, every, keep, ranks),
    ]
    with _tensorboard_folder(store, record.name) as folder, ranks.watched():
        loggers = make_loggers(config, record.name, folder) if ranks.first else []
        trainer = make_trainer(config, plan, store, list(callbacks), loggers)
        trainer.fit(
            module,
            datamodule=data,
            ckpt_path=step_key(record.name, resumed_from) if resumed_from else None,
            weights_only=True,
        )
    step = trainer.global_step
    outcome = _outcome(step, plan, stop.received)
    if ranks.first:
        write_outcome(store, record.name, attempt, outcome, step)
        spent = (record.train_seconds or 0.0) + module.clock.seconds()
        finished_at = now() if outcome == "done" else None
        save_run(store, dataclasses.replace(record, finished_at=finished_at, train_seconds=spent, step=step))
    return Trained(record.name, store.url(f"runs/{record.name}"), step, plan.total_steps, outcome, dict(log.last))


def _begin(store: Store, record: RunRecord) -> int:
    attempt = claim_attempt(store, record.name)
    save_run(store, record)
    return attempt


def _outcome(step: int, plan: TrainingPlan, signal_received: int | None) -> str:
    if step >= plan.total_steps:
        return "done"
    return "interrupted" if signal_received and step < plan.stop_step else "stopped"


def _data(
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
        validate=config.trainer.validate_every is not None,
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


def _open_run(
    config: Config, store: Store, prepared: Sequence[Prepared], model: nn.Module, plan: TrainingPlan
) -> RunRecord:
    """The run of this name as it was begun, or a new one. A run never changes under its name."""
    name = run_name(config)
    if store.exists(f"runs/{name}/run.json"):
        record = load_run(store, name)
        changes = config_changes(record.config, plain(config))
        if changes:
            lines = "\n".join(f"  {line}" for line in changes)
            raise SkytrainError(
                f"run {name!r} was begun with other settings:\n{lines}\n  choose another name with run=NAME, or leave run out and a name is made"
            )
        return record
    manifests = {
        each.prefix(m.split): hashlib.sha256(m.to_bytes()).hexdigest()
        for each in prepared
        for m in (each.train, each.validation)
        if m
    }
    device = torch.cuda.get_device_name() if plan.device == "cuda" else "cpu"
    return new_record(
        config,
        name=name,
        data=manifests,
        tokenizer_id=prepared[0].tokenizer_id,
        parameters=sum(parameter.numel() for parameter in model.parameters()),
        hardware={"device": device, "torch": torch.__version__, "threads": torch.get_num_threads()},
    )


def describe(
    config: Config,
    plan: TrainingPlan,
    record: RunRecord,
    prepared: Prepared,
    data: TokenDataModule,
    model: nn.Module,
    resumed_from: int,
) -> list[tuple[str, str]]:
    """Every setting that matters, before the first step."""
    trainer, tokens = config.trainer, plan.batch_tokens * plan.total_steps
    per_token = flops_per_token(model, trainer.sequence_length)
    devices = f"{plan.mesh.data} ranks x " if plan.mesh.data > 1 else ""
    through = f"{plan.micro_batch // trainer.micro_batch} x " if plan.mesh.pipeline > 1 else ""
    accumulation = (
        f"{devices}{plan.micro_batches} x {through}{trainer.micro_batch} sequences of {trainer.sequence_length}"
    )
    stop = f", stopping at {plan.stop_step}" if plan.stop_step < plan.total_steps else ""
    reached = data.blend.epochs(plan.batch_sequences * plan.total_steps)
    epochs = ", ".join(
        f"{count:.2f}" + (f" of {name}" if config.loader.mixture else "") for name, count in reached.items()
    )
    sources = " + ".join(data.blend.names) if config.loader.mixture else config.data.name
    rows = [
        ("model", f"{config.model.name}, {format_count(record.parameters)} parameters"),
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
            f"{config.optimizer.name}, lr {config.optimizer.lr:g} ({config.lr_schedule.name}, {config.lr_schedule.warmup_steps} warmup), decay {config.optimizer.weight_decay:g}, clip {trainer.clip_norm}",
        ),
        ("device", f"{record.hardware['device']}, {trainer.precision}{', compiled' if trainer.compile else ''}"),
        *([("mesh", f"{plan.mesh} on {plan.ranks.nodes} node(s)")] if uses_process_group(config) else []),
        ("seed", str(config.seed)),
    ]
    return [*rows, ("resumes", f"from step {resumed_from}")] if resumed_from else rows


def _step_log(
    config: Config, plan: TrainingPlan, store: Store, run: str, attempt: int, model: nn.Module, reporter: Reporter
) -> StepLog:
    peak = device_peak(torch.cuda.get_device_name()) if plan.device == "cuda" else None
    return StepLog(
        reporter,
        MetricsWriter(store, f"runs/{run}/attempts/{attempt}/metrics"),
        every=config.trainer.log_every,
        batch_tokens=plan.batch_tokens,
        micro_batches=plan.micro_batches,
        flops_per_token=flops_per_token(model, config.trainer.sequence_length),
        peak_flops=peak * plan.ranks.world_size if peak else None,
    )


def _samples(config: Config, module: CausalLM, tokenizer: Tokenizer, reporter: Reporter) -> list[Any]:
    if not config.trainer.sample_every:
        return []

    def sample() -> str:
        prompt = config.trainer.sample_prompt
        pieces = generate(
            module.model,
            tokenizer,
            prompt,
            max_tokens=config.trainer.sample_tokens,
            temperature=0.8,
            top_k=50,
            top_p=None,
            seed=config.seed,
        )
        return prompt + "".join(pieces)

    return [Samples(reporter, sample, config.trainer.sample_every)]


@contextlib.contextmanager
def _tensorboard_folder(store: Store, run: str) -> Iterator[Path]:
    """A local folder for event files, which are appended to: the run's own on file://, elsewhere one that is uploaded at the end."""
    key = f"runs/{run}/tensorboard"
    local = store.local_path(key)
    if local is not None:
        local.mkdir(parents=True, exist_ok=True)
        yield local
        return
    with tempfile.TemporaryDirectory(prefix="skytrain-tensorboard-") as scratch:
        try:
            yield Path(scratch)
        finally:
            for path in sorted(Path(scratch).rglob("*")):
                if path.is_file():
                    store.upload(path, f"{key}/{path.relative_to(scratch).as_posix()}")
