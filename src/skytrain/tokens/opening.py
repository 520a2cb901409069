"""Opens prepared or external token files as readable splits, according to the settings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from ..config import BatchSizes, Config, ConfigError, LoaderConfig, SkytrainError, TokenFilesConfig, format_bytes
from ..storage import Store
from .cache import ShardCache, default_folder
from .formats import FileLayout, open_token_files
from .manifest import TokenizerFacts
from .mixture import Phase
from .packing import PackedSplit
from .prepared import Prepared, find_mixture, find_prepared
from .reader import TokenSplit
from .shards import Split
from .tokenizers import Tokenizer, open_tokenizer


@dataclass(frozen=True)
class TrainingData:
    train: Mapping[str, TokenSplit]
    phases: tuple[Phase, ...]  # phases of the mixture, in sequences; empty for a single source
    validation: TokenSplit | None


@dataclass(frozen=True)
class TrainingSources:
    """The prepared data of a run, the data sets of its mixture (if any), and their tokenizer."""

    prepared: Prepared
    mixture: Mapping[str, Prepared]
    tokenizer: Tokenizer


def open_training_data(
    store: Store,
    loader: LoaderConfig,
    sources: TrainingSources,
    *,
    vocab_size: int,
    batches: BatchSizes,
    validate: bool,
) -> TrainingData:
    """Open the splits of a run: made local and verified now, or, with `shuffle: blocks`, when needed."""
    cache = _cache(loader, store)
    if loader.files is not None:
        train, validation = _open_files(loader.files, sources.tokenizer, cache, vocab_size, validate)
    else:
        train, validation = _open_prepared(store, sources, cache, vocab_size, validate)
    if loader.packing == "documents":
        train = {name: PackedSplit.of(split) for name, split in train.items()}
    if validation is not None and validation.manifest.masked:
        validation = PackedSplit.of(validation)
    if loader.shuffle == "global":
        _make_local(train, cache)
    phases = tuple(
        Phase(batches.before(phase.from_step), tuple(phase.weights[name] for name in sources.mixture))
        for phase in loader.mixture
    )
    # Only the first windows of the validation split are read: the data module requests their shards.
    return TrainingData(train, phases, validation)


def find_training_data(store: Store, config: Config) -> Prepared:
    """Find the data of a run: prepared data in the store, or another project's files."""
    if config.loader.files is None:
        return find_prepared(store, config.data, config.tokenizer)
    if config.loader.mixture:
        raise ConfigError(
            "loader.files", "cannot be part of a mixture", hint="set loader.mixture=[] or loader.files=null"
        )
    tokenizer = open_tokenizer(config.tokenizer, store)
    validates = config.loader.files.validation is not None
    train, validation = _open_files(
        config.loader.files, tokenizer, _cache(config.loader, store), config.model.vocab_size, validates
    )
    folder = config.loader.files.train.rpartition("/")[0]
    return Prepared(folder, tokenizer.id, train["train"].manifest, validation.manifest if validation else None)


def check_validation(store: Store, config: Config, prepared: Prepared) -> None:
    """Raise SkytrainError if a run shall validate, and its data has nothing to validate on."""
    if config.trainer.validate_every and prepared.validation is None:
        raise SkytrainError(
            f"{store.url(prepared.folder)} has no validation split to validate on\n"
            "  prepare with a larger data.validation_fraction, or set trainer.validate_every=null"
        )


def open_file_split(files: TokenFilesConfig, split: Split, tokenizer: Tokenizer) -> TokenSplit:
    """Open one split of another project's files and make all of it local."""
    pattern = files.train if split == "train" else files.validation
    if pattern is None:
        raise SkytrainError(
            f"loader.files names no {split} files\n  set loader.files.{split}='FOLDER/*.bin', or measure another split"
        )
    opened = _open_file_split(files, pattern, split, tokenizer, ShardCache(), tokenizer.vocab_size)
    opened.supply_all(range(len(opened.files)))
    return opened


def _open_prepared(
    store: Store, sources: TrainingSources, cache: ShardCache, vocab_size: int, validate: bool
) -> tuple[dict[str, TokenSplit], TokenSplit | None]:
    def open_split(prefix: str) -> TokenSplit:
        return TokenSplit.open(
            store,
            prefix,
            expect_tokenizer_hash=sources.tokenizer.hash,
            vocab_size=vocab_size,
            cache=cache,
            supply=False,
        )

    named = dict(sources.mixture) or {"train": sources.prepared}
    train = {name: open_split(source.prefix("train")) for name, source in named.items()}
    return train, open_split(sources.prepared.prefix("validation")) if validate else None


def _open_files(
    files: TokenFilesConfig, tokenizer: Tokenizer, cache: ShardCache, vocab_size: int, validate: bool
) -> tuple[dict[str, TokenSplit], TokenSplit | None]:
    validation = None
    if validate and files.validation:
        validation = _open_file_split(files, files.validation, "validation", tokenizer, cache, vocab_size)
    return {"train": _open_file_split(files, files.train, "train", tokenizer, cache, vocab_size)}, validation


def _open_file_split(
    files: TokenFilesConfig, pattern: str, split: Split, tokenizer: Tokenizer, cache: ShardCache, vocab_size: int
) -> TokenSplit:
    facts = TokenizerFacts(tokenizer.name, tokenizer.hash, tokenizer.vocab_size, tokenizer.eot)
    return open_token_files(pattern, FileLayout(files.format, files.dtype), split, facts, cache, vocab_size=vocab_size)


def _cache(loader: LoaderConfig, store: Store) -> ShardCache:
    folder = Path(loader.cache_dir).expanduser() if loader.cache_dir else default_folder()
    return ShardCache(folder, loader.cache_limit, store.patience_seconds)


def _make_local(splits: Mapping[str, TokenSplit], cache: ShardCache) -> None:
    needed = sum(file.bytes for split in splits.values() if not split.in_place for file in split.files)
    if cache.limit_bytes is not None and needed > cache.limit_bytes:
        raise SkytrainError(
            f"loader.shuffle=global needs all {format_bytes(needed)} of the training split on this machine, and the cache may hold {format_bytes(cache.limit_bytes)}\n"
            "  set a larger loader.cache_limit, or loader.shuffle=blocks"
        )
    for split in splits.values():
        split.supply_all(range(len(split.files)))


def open_mixture(store: Store, loader: LoaderConfig, tokenizer_id: str) -> dict[str, Prepared]:
    """Open the data sets in `loader.mixture`; return none if it is empty."""
    if not loader.mixture:
        return {}
    names = list(loader.mixture[0].weights)
    for number, phase in enumerate(loader.mixture):
        key = f"loader.mixture[{number}]"
        if set(phase.weights) != set(names):
            raise ConfigError(
                key,
                f"has weights for {', '.join(phase.weights)}, the first phase for {', '.join(names)}",
                hint="name the same data sets in every phase",
            )
        if (number == 0) != (phase.from_step == 0):
            raise ConfigError(
                f"{key}.from_step", f"is {phase.from_step}", hint="the first phase begins at step 0, the others later"
            )
    if len(names) < 2:
        raise ConfigError(
            "loader.mixture", f"has {len(names)} data set", hint="a mixture needs two; for one, use data=NAME"
        )
    return find_mixture(store, names, tokenizer_id)
