from __future__ import annotations

import gc
from typing import Any

import lightning.pytorch as pl
import pytest
import torch

from skytrain.training.garbage import KeepGarbageOut

pytestmark = pytest.mark.usefixtures("real_freezing")


class Tiny(pl.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(2, 1)

    def training_step(self, batch: Any, index: int) -> Any:
        return self.layer(batch).sum()

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=0.1)


def fit(steps: int, *watchers: pl.Callback, every: int = 3) -> None:
    trainer = pl.Trainer(
        accelerator="cpu", max_steps=steps, accumulate_grad_batches=2, logger=False, enable_checkpointing=False,
        enable_progress_bar=False, enable_model_summary=False, callbacks=[KeepGarbageOut(every), *watchers],
    )  # fmt: skip
    trainer.fit(Tiny(), torch.utils.data.DataLoader(torch.randn(2 * steps, 2)))


def collections() -> int:
    return sum(generation["collections"] for generation in gc.get_stats())


class Passes(pl.Callback):
    """How many collections there were from the beginning of one micro-batch to that of the next."""

    def __init__(self) -> None:
        self.seen: list[int] = []

    def on_train_batch_start(self, *_: Any) -> None:
        for _ in range(3):
            [[i] for i in range(2000)]  # enough objects for a pass, if passes were made when objects are
        self.seen.append(collections())


def test_garbage_is_collected_after_every_so_many_steps_and_at_no_other_time() -> None:
    passes = Passes()
    fit(7, passes)
    between = [later - earlier for earlier, later in zip(passes.seen, passes.seen[1:], strict=False)]
    assert [index for index, count in enumerate(between) if count] == [5, 11]  # the last micro-batches of steps 3 and 6


def test_collection_is_as_before_when_training_ends() -> None:
    assert gc.isenabled()
    fit(1)
    assert gc.isenabled()
    assert gc.get_freeze_count() == 0


class Breaks(pl.Callback):
    def on_train_batch_end(self, *_: Any) -> None:
        raise ValueError("broken")


def test_collection_is_as_before_when_training_fails() -> None:
    with pytest.raises(ValueError, match="broken"):
        fit(2, Breaks())
    assert gc.isenabled()
