"""Evaluate: a model and held-out text in, a loss out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast, get_args

from ..config import Config, SkytrainError, TokenFilesConfig, parse_count
from ..evaluation import HeldOut, LossReport, evaluate_loss, place_model
from ..runs import Reporter, RunRecord
from ..storage import Store, open_store
from ..tokens import PackedSplit, Split, Tokenizer, TokenSplit, find_prepared_for, open_file_split

AUTO_BATCH_TOKENS = 8192  # at a time, where trainer.micro_batch=auto names no size


@dataclass(frozen=True)
class LossRequest:
    """Which model to evaluate, and on which text."""

    source: str | None = None  # a run, RUN@STEP or an exported folder; None: the newest run
    split: str = "validation"
    max_tokens: str | None = None  # as 100K; None: the whole split
    precision: str | None = None


def evaluate(config: Config, request: LossRequest, reporter: Reporter) -> tuple[str, LossReport]:
    """The model's label and its loss on a split."""
    if request.split not in get_args(Split):
        raise SkytrainError(f"--split {request.split}: must be train or validation")
    limit = token_limit(request.max_tokens)
    store = open_store(config.store)
    placed = place_model(config, store, request.source, request.precision)
    evaluated = EvaluatedModel(placed.tokenizer, placed.model.window, placed.label, placed.run)
    held_out = open_held_out(config, store, evaluated, cast(Split, request.split), limit)
    report = evaluate_loss(placed.model, held_out, lambda done, total: reporter.progress("evaluate", done, total))
    return placed.label, report


@dataclass(frozen=True)
class EvaluatedModel:
    """What decides the text that a model is evaluated on."""

    tokenizer: Tokenizer
    window: int
    label: str
    run: RunRecord | None  # None: the configured data, whatever the model was trained on


def open_held_out(config: Config, store: Store, model: EvaluatedModel, split: Split, limit: int | None) -> HeldOut:
    """A run is evaluated on its own data; a model without a run, on the configured data."""
    tokenizer = model.tokenizer
    run = model.run
    if run is None:
        files = config.loader.files
        length = min(config.trainer.sequence_length, model.window)
        batch = config.trainer.micro_batch
    else:
        named = run.config["loader"].get("files")
        files = TokenFilesConfig(**named) if named else None
        length = run.config["trainer"]["sequence_length"]
        batch = run.config["trainer"]["micro_batch"]
    if files is not None:
        tokens = open_file_split(files, split, tokenizer)
    else:
        prefix = (
            _prefix_of_run(run, split)
            if run
            else find_prepared_for(store, config.data, tokenizer, model.label).prefix(split)
        )
        tokens = TokenSplit.open(store, prefix, expect_tokenizer_hash=tokenizer.hash, vocab_size=tokenizer.vocab_size)
        if tokens.manifest.masked:
            tokens = PackedSplit.of(tokens)
    return HeldOut(
        split=tokens,
        tokenizer=tokenizer,
        sequence_length=length,
        batch=batch or max(1, AUTO_BATCH_TOKENS // length),
        max_tokens=limit,
    )


def _prefix_of_run(run: RunRecord, split: str) -> str:
    for prefix in run.data:
        if prefix.endswith(f"/{split}"):
            return prefix
    raise SkytrainError(f"the data of run {run.name} has no {split} split")


def token_limit(text: str | None) -> int | None:
    if text is None:
        return None
    try:
        limit = parse_count(text)
    except ValueError as error:
        raise SkytrainError(f"--tokens {text}: {error}") from None
    if limit < 1:
        raise SkytrainError(f"--tokens {text}: must be at least 1")
    return limit
