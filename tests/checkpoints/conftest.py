from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from skytrain.checkpoints.saving import TrainingState, write_checkpoint
from skytrain.storage import Store, open_store


@pytest.fixture
def store(tmp_path) -> Store:
    return open_store(str(tmp_path / "store"))


def some_state(seed: int = 0) -> TrainingState:
    """A little of everything: a matrix, a scalar, a half-precision vector, bytes."""
    made = torch.Generator().manual_seed(seed)
    tensors = {
        "model/weight": torch.randn(40, 6, generator=made),
        "model/bias": torch.randn(7, generator=made).bfloat16(),
        "optimizer/0/weight/step": torch.tensor(3.0),
        "optimizer/0/weight/exp_avg": torch.randn(40, 6, generator=made),
        "random/00000/torch": torch.arange(50, dtype=torch.uint8),
    }
    return TrainingState(tensors, {"global_step": 5}, {"groups": []})


@pytest.fixture
def saved(store) -> Callable[..., str]:
    """Writes a checkpoint of run `r` and gives its key."""

    def write(step: int = 5, attempt: int = 0, seed: int = 0) -> str:
        from skytrain.checkpoints import step_key

        write_checkpoint(store, step_key("r", step), some_state(seed), attempt)
        return step_key("r", step)

    return write
