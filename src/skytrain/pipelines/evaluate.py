"""Evaluate: a model and held-out text in, a loss out."""

from __future__ import annotations

from ..checkpoints import LoadedModel, load_model
from ..config import Config, SkytrainError, parse_count
from ..evaluation import LossReport, evaluate_loss
from ..runs import Reporter
from ..storage import Store, open_store
from ..tokens import TokenSplit, find_prepared


def evaluate(
    config: Config, source: str | None, split: str, max_tokens: str | None, reporter: Reporter
) -> tuple[str, LossReport]:
    """The model's label and its loss on a split."""
    if split not in {"train", "validation"}:
        raise SkytrainError(f"--split {split}: it is train or validation")
    limit = _token_limit(max_tokens)
    store = open_store(config.store)
    loaded = load_model(store, source)
    prefix, sequence_length, batch = _where(config, store, loaded, split)
    tokens = TokenSplit.open(
        store, prefix, expect_tokenizer_hash=loaded.tokenizer.hash, vocab_size=loaded.tokenizer.vocab_size
    )
    report = evaluate_loss(
        loaded.model,
        tokens,
        loaded.tokenizer,
        sequence_length=sequence_length,
        batch=batch,
        max_tokens=limit,
        progress=lambda done, total: reporter.progress("evaluate", done, total),
    )
    return loaded.label, report


def _where(config: Config, store: Store, loaded: LoadedModel, split: str) -> tuple[str, int, int]:
    """The split to judge by: a run's own data, or what the configuration names for a model that came without a run."""
    if loaded.run is None:
        return (
            find_prepared(store, config.data, config.tokenizer).prefix(split),
            config.trainer.sequence_length,
            config.trainer.micro_batch,
        )
    prefix = next((key for key in loaded.run.data if key.endswith(f"/{split}")), None)
    if prefix is None:
        raise SkytrainError(f"the data of run {loaded.run.name} has no {split} split")
    trainer = loaded.run.config["trainer"]
    return prefix, trainer["sequence_length"], trainer["micro_batch"]


def _token_limit(text: str | None) -> int | None:
    if text is None:
        return None
    try:
        limit = parse_count(text)
    except ValueError as error:
        raise SkytrainError(f"--tokens {text}: {error}") from None
    if limit < 1:
        raise SkytrainError(f"--tokens {text}: must be at least 1")
    return limit
