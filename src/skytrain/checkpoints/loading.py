"""Loads a model from a run's checkpoint or from an exported folder."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from torch import nn

from ..config import ModelConfig, SkytrainError, TokenizerConfig, build, check_named, check_trusted
from ..models import build_model, find_weights, is_pretrained, load_llmc, load_pretrained, place_of
from ..runs import RunRecord
from ..storage import Store, record_of
from ..tokens import (
    Tokenizer,
    is_stored,
    load_tokenizer_folder,
    open_tokenizer,
    stored_chat_template,
    with_chat_template,
)
from .commits import choose_commit, committed, find_run, step_key
from .deepspeed import open_weights
from .saved import SavedTensors


@dataclass(frozen=True)
class LoadedModel:
    """A model with its tokenizer, and where it came from."""

    model: nn.Module
    tokenizer: Tokenizer
    label: str
    run: RunRecord | None


def load_model(store: Store, source: str | None, tokenizer: TokenizerConfig | None = None) -> LoadedModel:
    """Load a model and its tokenizer.

    `source` is a run, `run@step`, a folder in Hugging Face's layout, or a repository that the store or
    the hub has, or a file of llm.c, whose tokenizer is `tokenizer`; None is the newest run.
    """
    if source and is_model_file(source):
        return _load_file(store, Path(source), tokenizer)
    if source and is_pretrained(source):
        place = place_of(store, source)
        return LoadedModel(load_pretrained(place), load_tokenizer_folder(find_weights(place)), source, None)
    record, step = choose_checkpoint(store, source)
    with record_of(store, f"runs/{record.name}/run.json"):
        described = recorded_model(record)
        recorded_tokenizer_settings(record)
    model = build_model(described, seed=record.seed, start_weights=False)
    load_weights(model, open_weights(store, step_key(record.name, step)).weights)
    model.eval()
    return LoadedModel(model, recorded_tokenizer(store, record), f"{record.name}@{step}", record)


def is_model_file(source: str) -> bool:
    """Return whether `--from` names a file of llm.c, rather than a run, a folder or a repository."""
    return Path(source).is_file()


def _load_file(store: Store, path: Path, tokenizer: TokenizerConfig | None) -> LoadedModel:
    """Load a model of llm.c, whose files hold weights only: the tokenizer is the configured one."""
    model = load_llmc(path).eval()
    assert tokenizer is not None, "whoever takes files says which tokenizer they have"
    opened = open_tokenizer(tokenizer, store)
    if opened.vocab_size != model.config.vocab_size:
        raise SkytrainError(
            f"{path} has a vocabulary of {model.config.vocab_size:,} tokens, tokenizer {opened.name} one of "
            f"{opened.vocab_size:,}\n  choose the tokenizer that it was trained with: tokenizer=NAME"
        )
    return LoadedModel(model, opened, str(path), None)


def recorded_model(record: RunRecord) -> ModelConfig:
    """Return the model that a record describes. Raises Untrusted if it names code that the person has not named."""
    settings = record.config["model"]
    check_trusted(settings, "model", f"run {record.name}")
    model: ModelConfig = build(ModelConfig, settings, "model")
    return model


def recorded_tokenizer_settings(record: RunRecord) -> TokenizerConfig:
    """Return the settings of the tokenizer that a record describes."""
    settings: TokenizerConfig = build(TokenizerConfig, record.config["tokenizer"], "tokenizer")
    return settings


def recorded_tokenizer(store: Store, record: RunRecord) -> Tokenizer:
    """Return the tokenizer of a run, from the store, with the chat template of its conversations.

    Raises Untrusted before another folder or repository is read.
    """
    settings = recorded_tokenizer_settings(record)
    if not is_stored(settings, store, record.tokenizer_id):
        check_named([("tokenizer.name", settings.name)], f"run {record.name}")
    tokenizer = open_tokenizer(settings, store, record.tokenizer_id)
    return with_chat_template(tokenizer, stored_chat_template(store, record.data))


def choose_checkpoint(store: Store, source: str | None) -> tuple[RunRecord, int]:
    """Return the run and the step that `run@step` names; by default the newest run and its newest step."""
    name, _, step_text = (source or "").partition("@")
    record = find_run(store, name or None)
    if record.merged_from and not committed(store, record.name):
        if not store.exists(f"runs/{record.name}/ensemble.json"):
            raise SkytrainError(
                f"run {record.name} is a merge of {', '.join(record.merged_from)} that was interrupted\n"
                "  run the same `skytrain merge` again to complete it"
            )
        raise SkytrainError(
            f"run {record.name} is an ensemble of {', '.join(record.merged_from)}, and has no weights itself\n"
            "  evaluate and generate accept it; `skytrain merge` makes one model of its experts"
        )
    return record, choose_commit(store, record.name, step_text).step


def load_weights(model: nn.Module, saved: SavedTensors) -> None:
    """Fill an unsharded model. A tied weight is saved once and read once."""
    seen: set[int] = set()
    targets = []
    for name, tensor in model.state_dict(keep_vars=True).items():
        if id(tensor) not in seen:
            seen.add(id(tensor))
            targets.append((name, tensor))
    saved.read_into(targets)
