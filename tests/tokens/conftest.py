from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from skytrain.storage import Store, open_store
from skytrain.storage.folder import FolderStore
from skytrain.tokens import Manifest, ShardWriter
from skytrain.tokens.manifest import TokenizerFacts

TOKENIZER = TokenizerFacts(name="toy", hash="a1b2c3", vocab_size=1000, eot=999)
PREFIX = "tokens/toy/v1/toy/train"


class FarFolder(FolderStore):
    """A folder that is only reached by copying, as a bucket is; unlike a bucket, also from forked processes."""

    def local_path(self, key: str) -> Path | None:
        return None


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return open_store(str(tmp_path / "store"))


def documents(count: int, seed: int = 0, longest: int = 60) -> list[np.ndarray]:
    """Documents of random length and random tokens; none holds the end-of-text token."""
    rng = np.random.default_rng(seed)
    return [rng.integers(0, TOKENIZER.eot, rng.integers(1, longest)) for _ in range(count)]


def write_split(
    store: Store,
    docs: list[np.ndarray],
    shard_tokens: int = 500,
    prefix: str = PREFIX,
    tokenizer: TokenizerFacts = TOKENIZER,
) -> Manifest:
    with ShardWriter(store, prefix, "train", tokenizer, shard_tokens) as writer:
        for ids in docs:
            writer.add(ids, text_bytes=4 * len(ids))
        return writer.finish({"dataset": "toy", "recipe_hash": "r1"})
