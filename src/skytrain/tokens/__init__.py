"""Tokens: tokenizers, shards with their manifest, the order of samples, and the batches that training reads."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .blend import Blend, Shuffle
from .cache import ShardCache
from .formats import Format, open_token_files
from .manifest import Manifest, Shard, TokenizerFacts, find_manifest
from .mixture import Mixture, Phase
from .opening import TrainingData, find_training_data, open_file_split, open_mixture, open_training_data
from .order import BlockOrder, GlobalOrder, Permutation, window_order, windows_at
from .packing import PackedSplit, inputs_and_targets
from .prepared import (
    Prepared,
    find_prepared,
    open_prepared,
    tokens_folder,
    trained_tokenizer_id,
    trained_tokenizer_key,
)
from .reader import TokenSplit
from .shards import Split, dtype_for, split_of
from .tokenizers import (
    ByteLevelBPE,
    Tokenizer,
    load_tokenizer_folder,
    open_tokenizer,
    store_tokenizer,
    stored_vocab_size,
    train_bpe,
)
from .writer import ShardWriter

if TYPE_CHECKING:
    from .datamodule import TokenDataModule

__all__ = [
    "Blend",
    "BlockOrder",
    "ByteLevelBPE",
    "Format",
    "GlobalOrder",
    "Manifest",
    "Mixture",
    "PackedSplit",
    "Permutation",
    "Phase",
    "Prepared",
    "Shard",
    "ShardCache",
    "ShardWriter",
    "Shuffle",
    "Split",
    "TokenDataModule",
    "TokenSplit",
    "Tokenizer",
    "TokenizerFacts",
    "TrainingData",
    "dtype_for",
    "find_manifest",
    "find_prepared",
    "find_training_data",
    "inputs_and_targets",
    "load_tokenizer_folder",
    "open_file_split",
    "open_mixture",
    "open_prepared",
    "open_token_files",
    "open_tokenizer",
    "open_training_data",
    "split_of",
    "store_tokenizer",
    "stored_vocab_size",
    "tokens_folder",
    "train_bpe",
    "trained_tokenizer_id",
    "trained_tokenizer_key",
    "window_order",
    "windows_at",
]


def __getattr__(name: str) -> Any:
    # Loaded when asked for: it brings torch and Lightning.
    if name == "TokenDataModule":
        from .datamodule import TokenDataModule

        return TokenDataModule
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
