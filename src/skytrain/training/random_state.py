"""Random generators of every rank, seeded at the start and saved with a checkpoint: dropout and plug-ins resume exactly."""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Mapping
from typing import Any

import lightning.pytorch as pl
import numpy as np
import torch

from ..jobs import Ranks
from ..storage import parse_json


class RandomState(pl.Callback):
    """A callback that saves the random generators of every rank with each checkpoint, and restores them on resume."""

    def __init__(self, ranks: Ranks) -> None:
        self._ranks = ranks
        self._loaded: dict[str, torch.Tensor] = {}
        self._is_mine = False

    def on_save_checkpoint(self, trainer: pl.Trainer, module: Any, checkpoint: dict[str, Any]) -> None:
        checkpoint["random"] = {_of_rank(self._ranks.rank) + name: value for name, value in random_state().items()}

    def on_load_checkpoint(self, trainer: pl.Trainer, module: Any, checkpoint: dict[str, Any]) -> None:
        saved = checkpoint["random"]
        mine = saved.below(_of_rank(self._ranks.rank)).read()
        self._is_mine = bool(mine)
        self._loaded = mine or saved.below(_of_rank(0)).read()

    def on_train_start(self, trainer: pl.Trainer, module: Any) -> None:
        """Restore the generators last, since building the loaders draws random numbers."""
        if self._is_mine:
            restore_random_state(self._loaded)
        elif self._loaded:  # there are more ranks than before: a new one gets a state that no other has
            seed_generators(seed_of_rank(bytes(self._loaded["torch"].tolist()), self._ranks.rank))


def _of_rank(rank: int) -> str:
    return f"{rank:05d}/"


def seed_of_rank(base: bytes, rank: int) -> int:
    """Return a different seed for each rank."""
    return int.from_bytes(hashlib.sha256(base + rank.to_bytes(4, "big")).digest()[:7], "big")


def seed_generators(seed: int) -> None:
    """Seed torch's, Python's and numpy's generators: a plug-in may use any of them."""
    torch.manual_seed(seed)
    random.seed(seed)
    np.random.seed(seed % 2**32)


def random_state() -> dict[str, torch.Tensor]:
    """Return the state of this rank's generators as tensors; Python's and numpy's are JSON in bytes."""
    version, words, gauss = random.getstate()
    numpy_state = np.random.get_state(legacy=True)
    assert isinstance(numpy_state, tuple)
    plain = {
        "python": [version, list(words), gauss],
        "numpy": [numpy_state[0], numpy_state[1].tolist(), *numpy_state[2:]],
    }
    state = {
        "plain": torch.frombuffer(bytearray(json.dumps(plain).encode()), dtype=torch.uint8),
        "torch": torch.get_rng_state(),
    }
    if torch.cuda.is_available():
        state["cuda"] = torch.cuda.get_rng_state()
    return state


def restore_random_state(state: Mapping[str, torch.Tensor]) -> None:
    plain = parse_json(bytes(state["plain"].tolist()))
    version, words, gauss = plain["python"]
    random.setstate((version, tuple(words), gauss))
    kind, keys, *rest = plain["numpy"]
    np.random.set_state((kind, np.array(keys, dtype=np.uint32), *rest))
    torch.set_rng_state(state["torch"].cpu())
    if torch.cuda.is_available() and "cuda" in state:
        torch.cuda.set_rng_state(state["cuda"].cpu())
