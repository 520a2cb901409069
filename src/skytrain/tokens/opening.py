"""From settings and what was prepared to splits that can be read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from skytrain.config import ConfigError, LoaderConfig, SkytrainError, format_bytes
from skytrain.storage import Store

from .cache import ShardCache, default_folder
from .mixture import Phase
from .prepared import Prepared, find_mixture
from .reader import TokenSplit
from .tokenizers import Tokenizer


@dataclass(frozen=True)
class TrainingData:
    train: Mapping[str, TokenSplit]
    phases: tuple[Phase, ...]  # of the mixture, in sequences; none where there is one source
    validation: TokenSplit | None


def open_training_data(
    store: Store,
    loader: LoaderConfig,
    prepared: Prepared,
    mixture: Mapping[str, Prepared],
    tokenizer: Tokenizer,
    *,
    vocab_size: int,
    batch_sequences: int,
    validate: bool,
) -> TrainingData:
    """The splits that a run reads: verified and local at once, or, with `shuffle: blocks`, when they are needed."""
    cache = ShardCache(
        Path(loader.cache_dir).expanduser() if loader.cache_dir else default_folder(),
        loader.cache_limit,
        loader.store_wait,
    )

    def open_split(prefix: str) -> TokenSplit:
        return TokenSplit.open(
            store, prefix, expect_tokenizer_hash=tokenizer.hash, vocab_size=vocab_size, cache=cache, supply=False
        )

    sources = dict(mixture) or {"train": prepared}
    train = {name: open_split(source.prefix("train")) for name, source in sources.items()}
    if loader.shuffle == "global":
        _make_local(train, cache)
    return TrainingData(
        train=train,
        phases=tuple(
            Phase(phase.from_step * batch_sequences, tuple(phase.weights[name] for name in mixture))
            for phase in loader.mixture
        ),
        # Of the validation split only the first windows are read: the data module asks for their shards.
        validation=open_split(prepared.prefix("validation")) if validate else None,
    )


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
    """The data sets that `loader.mixture` names; none where it is empty."""
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
        for name, weight in phase.weights.items():
            if isinstance(weight, bool) or not isinstance(weight, (int, float)):
                raise ConfigError(f"{key}.weights.{name}", f"{weight!r} is not a number")
        if (number == 0) != (phase.from_step == 0):
            raise ConfigError(
                f"{key}.from_step", f"is {phase.from_step}", hint="the first phase begins at step 0, the others later"
            )
    if len(names) < 2:
        raise ConfigError(
            "loader.mixture", f"has {len(names)} data set", hint="a mixture needs two; for one, use data=NAME"
        )
    return find_mixture(store, names, tokenizer_id)
