from __future__ import annotations

import pickle
from types import SimpleNamespace
from typing import Any

import lightning as L
import numpy as np
import pytest
import torch

from skytrain.config import BatchSizes, SkytrainError
from skytrain.storage import Store
from skytrain.tokens import Batch, BatchSettings, TokenDataModule, TokenSplit
from skytrain.tokens.order import windows_at

from .conftest import PREFIX, documents, write_split

T = 16


@pytest.fixture
def split(store: Store) -> TokenSplit:
    write_split(store, documents(60))
    return TokenSplit.open(store, PREFIX)


def module(split: TokenSplit, rank: int = 0, world: int = 1, **settings: Any) -> TokenDataModule:
    settings = {
        "sequence_length": T,
        "micro_batch": 2,
        "batches": BatchSizes(24),
        "total_steps": 12,
        "seed": 3,
        **settings,
    }
    made = TokenDataModule(split, split, BatchSettings(**settings))
    if world > 1:
        made.trainer = SimpleNamespace(distributed_sampler_kwargs={"rank": rank, "num_replicas": world}, global_step=0)  # type: ignore[assignment]
    return made


def global_batches(
    split: TokenSplit, world: int, state: dict[str, Any] | None = None, **settings: Any
) -> list[torch.Tensor]:
    """Each optimizer step's sequences in global order, put together from every rank's micro-batches."""
    ranks = []
    for rank in range(world):
        made = module(split, rank, world, **settings)
        if state:
            made.load_state_dict(state)
        ranks.append([batch.windows for batch in made.train_dataloader()])
    rounds = [torch.cat(batches) for batches in zip(*ranks, strict=True)]
    a_step = 24 // (2 * world)
    return [torch.cat(rounds[i : i + a_step]) for i in range(0, len(rounds), a_step)]


def test_batches_follow_the_global_order_across_epochs(split: TokenSplit) -> None:
    steps = global_batches(split, world=1)
    count = split.windows(T)
    assert 2 * count < 12 * 24, "the run must span epochs"
    expected = split.batch(windows_at(np.arange(12 * 24), seed=3, count=count), T)
    assert len(steps) == 12 and torch.equal(torch.cat(steps), expected.windows)
    assert steps[0].dtype == torch.int64 and steps[0].shape == (24, T + 1)


@pytest.mark.parametrize("world", [2, 3, 4, 6])
def test_any_number_of_ranks_sees_the_same_global_batches(split: TokenSplit, world: int) -> None:
    for alone, together in zip(global_batches(split, 1), global_batches(split, world), strict=True):
        assert torch.equal(alone, together)


@pytest.mark.parametrize("workers", [1, 3])
def test_workers_change_nothing(split: TokenSplit, workers: int) -> None:
    for alone, helped in zip(global_batches(split, 1), global_batches(split, 1, workers=workers), strict=True):
        assert torch.equal(alone, helped)


def test_a_restored_position_continues_on_another_number_of_ranks(split: TokenSplit) -> None:
    whole = global_batches(split, 1)
    rest = global_batches(split, 4, state={"position": 5 * 24})
    assert len(rest) == 7
    for expected, found in zip(whole[5:], rest, strict=True):
        assert torch.equal(expected, found)


def test_the_length_is_that_of_the_whole_run_wherever_it_starts(split: TokenSplit) -> None:
    made = module(split, world=2)
    made.load_state_dict({"position": 48})
    assert len(made.train_dataloader()) == 12 * 24 // (2 * 2)


def test_a_position_of_another_order_is_refused(split: TokenSplit) -> None:
    state = module(split).state_dict()
    with pytest.raises(SkytrainError, match="seed was 3, now it is 4"):
        module(split, seed=4).load_state_dict(state)


def test_a_position_of_another_shuffle_is_refused(split: TokenSplit) -> None:
    state = module(split).state_dict()
    with pytest.raises(SkytrainError, match="order was global, now it is blocks of 2"):
        module(split, shuffle="blocks", block_shards=2).load_state_dict(state)


@pytest.mark.parametrize("order", [{}, {"shuffle": "blocks", "block_shards": 2}])
def test_what_goes_to_a_spawned_worker_is_small_and_reads_the_same(split: TokenSplit, order: dict[str, Any]) -> None:
    data = module(split, **order).train_dataloader().dataset
    sent = pickle.dumps(data)
    assert len(sent) < 10_000
    assert torch.equal(pickle.loads(sent).__getitems__(np.arange(9)).windows, data.__getitems__(np.arange(9)).windows)  # type: ignore[attr-defined]


def test_a_batch_that_does_not_divide_is_refused_with_a_size_that_would(split: TokenSplit) -> None:
    with pytest.raises(SkytrainError, match=r"24 sequences .* 5 data-parallel ranks\n.* multiple of 160"):
        module(split, 0, 5).train_dataloader()


def test_a_split_shorter_than_one_sequence_is_refused(split: TokenSplit) -> None:
    with pytest.raises(SkytrainError, match="too few for one sequence of 100000"):
        module(split, sequence_length=100_000)


@pytest.mark.parametrize(("world", "windows"), [(1, 20), (2, 20), (3, 20), (4, 9), (4, 17)])
def test_validation_reads_the_same_windows_once_on_any_number_of_ranks(
    split: TokenSplit, world: int, windows: int
) -> None:
    ranks = [list(module(split, rank, world, validation_tokens=windows * T).val_dataloader()) for rank in range(world)]
    assert len({len(batches) for batches in ranks}) == 1, "collectives need the same number of batches on every rank"
    seen = torch.cat([batch.windows for batches in ranks for batch in batches])
    expected = split.batch(np.arange(windows), T)
    assert sorted(map(tuple, seen.tolist())) == sorted(map(tuple, expected.windows.tolist()))


def test_loading_batches_leaves_the_global_random_state_alone(split: TokenSplit) -> None:
    before = torch.get_rng_state()
    next(iter(module(split, workers=1).train_dataloader()))
    assert torch.equal(torch.get_rng_state(), before)


class Recorder(L.LightningModule):
    """Trains nothing worth having; remembers what it was given."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(1))
        self.seen: list[torch.Tensor] = []

    def training_step(self, batch: Batch, _: int) -> torch.Tensor:
        self.seen.append(batch.windows)
        return self.weight.sum()

    def configure_optimizers(self) -> torch.optim.Optimizer:
        assert (
            self.trainer.estimated_stepping_batches
        )  # makes Lightning build the loaders before it restores their state
        return torch.optim.SGD(self.parameters())


@pytest.mark.parametrize("workers", [0, 2])
def test_a_lightning_run_resumed_from_its_checkpoint_sees_what_the_unbroken_run_sees(
    split: TokenSplit, tmp_path: Any, workers: int
) -> None:
    def fit(steps: int, checkpoint: str | None = None) -> tuple[list[torch.Tensor], L.Trainer]:
        recorder = Recorder()
        trainer = L.Trainer(
            max_steps=steps,
            accumulate_grad_batches=12,
            use_distributed_sampler=False,
            accelerator="cpu",
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
        )
        trainer.fit(recorder, datamodule=module(split, workers=workers), ckpt_path=checkpoint)
        return recorder.seen, trainer

    whole, _ = fit(12)
    first, trainer = fit(5)
    trainer.save_checkpoint(tmp_path / "five.ckpt")
    second, _ = fit(12, str(tmp_path / "five.ckpt"))
    assert len(whole) == 12 * 12
    assert torch.equal(torch.stack(first + second), torch.stack(whole))
