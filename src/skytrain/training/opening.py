"""Opening a run: its data, its model, its record, and where it resumes. Nothing is written to the store yet."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

import torch
from torch import nn

from ..checkpoints import has_trained
from ..config import INTERRUPTED, Config
from ..models import count_parameters
from ..runs import RunRecord, attempt_numbers, load_run, new_record, plain, read_outcome
from ..storage import Store
from ..tokens import (
    BatchSettings,
    Prepared,
    TokenDataModule,
    Tokenizer,
    TrainingSources,
    check_validation,
    data_hashes,
    find_training_data,
    open_mixture,
    open_tokenizer,
    open_training_data,
)
from .context import RunContext
from .factory import TrainingPlan, device_name
from .random_state import seed_generators, seed_of_rank
from .resume import ResumeCheck, build_start_model, check_resume, start_label


@dataclass(frozen=True)
class OpenedRun:
    """A run that is ready for an attempt."""

    record: RunRecord  # as it will be saved; that of a new run is not in the store yet
    prepared: Prepared
    tokenizer: Tokenizer
    data: TokenDataModule
    model: nn.Module
    resume: ResumeCheck
    has_ended: bool  # it is at its last step, and its newest attempt was not interrupted


def open_run(context: RunContext) -> OpenedRun:
    """Open the run, or raise an error if it cannot start or resume as configured. All ranks call this together."""
    config = context.config
    store = context.store
    ranks = context.ranks
    prepared = ranks.first_does(lambda: find_training_data(store, config))
    tokenizer = open_tokenizer(config.tokenizer, store, prepared.tokenizer_id)
    mixture = open_mixture(store, config.loader, prepared.tokenizer_id)
    data = _make_data(config, context.plan, store, TrainingSources(prepared, mixture, tokenizer))
    sources = [prepared, *mixture.values()]
    resume = ranks.first_does(lambda: check_resume(context, sources))
    seed_generators(config.seed if ranks.first else seed_of_rank(str(config.seed).encode(), ranks.rank))
    model = build_start_model(config, store, resume.point)
    parent = start_label(context.start, resume.point)
    record = ranks.first_does(lambda: _make_record(context, sources, count_parameters(model), parent))
    at_end = resume.point.step >= context.plan.stop_step
    has_ended = at_end and ranks.first_does(lambda: _has_outcome(context))
    return OpenedRun(
        record=record,
        prepared=prepared,
        tokenizer=tokenizer,
        data=data,
        model=model,
        resume=resume,
        has_ended=has_ended,
    )


def open_data(config: Config, plan: TrainingPlan, store: Store) -> TokenDataModule:
    """Open the prepared data of a configuration, for one process that opens no run."""
    prepared = find_training_data(store, config)
    tokenizer = open_tokenizer(config.tokenizer, store, prepared.tokenizer_id)
    mixture = open_mixture(store, config.loader, prepared.tokenizer_id)
    return _make_data(config, plan, store, TrainingSources(prepared, mixture, tokenizer))


def _make_data(config: Config, plan: TrainingPlan, store: Store, sources: TrainingSources) -> TokenDataModule:
    prepared = sources.prepared
    check_validation(store, config, prepared)
    sequences = plan.batches.in_sequences(config.trainer.sequence_length)
    opened = open_training_data(
        store,
        config.loader,
        sources,
        vocab_size=config.model.vocab_size,
        batches=sequences,
        validate=prepared.validation is not None,
    )
    batches = BatchSettings(
        sequence_length=config.trainer.sequence_length,
        micro_batch=plan.micro_batch,
        batches=sequences,
        total_steps=plan.total_steps,
        seed=config.seed,
        workers=config.trainer.workers,
        validation_tokens=config.trainer.validate_tokens,
        shuffle=config.loader.shuffle,
        block_shards=config.loader.block_shards,
        phases=opened.phases,
        document_starts=config.loader.separate_documents,
    )
    return TokenDataModule(opened.train, opened.validation, batches)


def _make_record(context: RunContext, sources: list[Prepared], parameters: int, parent: str | None) -> RunRecord:
    """Return the record of the run with its present settings and hardware, or a new one."""
    config = context.config
    start = context.start
    hardware = {
        "device": device_name(context.plan.device),
        "torch": torch.__version__,
        "threads": torch.get_num_threads(),
    }
    if context.store.exists(f"runs/{context.run}/run.json") and has_trained(context.store, context.run):
        record = load_run(context.store, context.run)
        return dataclasses.replace(record, config=plain(config), data=data_hashes(sources), hardware=hardware)
    record = new_record(
        config,
        name=context.run,
        data=data_hashes(sources),
        tokenizer_id=sources[0].tokenizer_id,
        parameters=parameters,
        hardware=hardware,
    )
    return dataclasses.replace(record, started_from=start.label, parent=parent) if start.source else record


def _has_outcome(context: RunContext) -> bool:
    newest = attempt_numbers(context.store, context.run)[-1]
    outcome = read_outcome(context.store, context.run, newest)
    # One that was killed after its last commit has not closed the run's record.
    return outcome is not None and outcome["outcome"] != INTERRUPTED
