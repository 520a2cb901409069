"""Any number of ranks after any other, stopped anywhere, with any workers: the same global batches, each rank a process of its own."""

from __future__ import annotations

import itertools
import json
import multiprocessing
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from skytrain.config import BatchSizes
from skytrain.storage import Store
from skytrain.tokens import BatchSettings, TokenDataModule, TokenSplit, datamodule
from skytrain.tokens.cache import ShardCache
from skytrain.tokens.mixture import Phase

from .conftest import documents, write_split

T, MICRO_BATCH, BATCH, STEPS = 16, 2, 48, 9
WORLDS = (1, 2, 3, 4, 8)
STOPS = (0, 1, 4, 8)  # the epoch ends within the fifth step
ORDERS: dict[str, dict[str, Any]] = {
    "global": {},
    "blocks": {"shuffle": "blocks", "block_shards": 2},
    "mixture": {
        "shuffle": "blocks",
        "block_shards": 2,
        "phases": [Phase(0, (0.7, 0.3)), Phase(3 * BATCH, (0.25, 0.75))],
    },
}


class Cluster:
    """Runs ranks of a data-parallel world, as processes that share nothing but the store and the cache."""

    def __init__(self, store: Store, folder: Path) -> None:
        for name, count in (("one", 110), ("two", 40)):
            write_split(store, documents(count, seed=count), prefix=f"tokens/{name}", shard_tokens=200)
        self.store, self.folder = store, folder

    def module(self, order: str, workers: int, rank: int, world: int) -> TokenDataModule:
        shards = ShardCache(self.folder / "cache")
        one, two = (
            TokenSplit.open(self.store, f"tokens/{name}", cache=shards, supply=order == "global")
            for name in ("one", "two")
        )
        train = {"one": one, "two": two} if order == "mixture" else one
        batches = BatchSettings(
            sequence_length=T,
            micro_batch=MICRO_BATCH,
            batches=BatchSizes(BATCH),
            total_steps=STEPS,
            seed=5,
            workers=workers,
            **ORDERS[order],
        )
        made = TokenDataModule(train, None, batches)
        made.trainer = SimpleNamespace(distributed_sampler_kwargs={"rank": rank, "num_replicas": world}, global_step=0)  # type: ignore[assignment]
        return made

    def rank(
        self, order: str, workers: int, rank: int, world: int, state: dict[str, Any] | None, steps: int, answer: Any
    ) -> None:
        """In a process of its own: train `steps` steps from `state`, then save, in the middle of what workers have prefetched."""
        datamodule.ORDER_CHUNK = datamodule.STREAM_CHUNK = 32
        made = self.module(order, workers, rank, world)
        if state is not None:
            made.load_state_dict(state)
            made.trainer.global_step = state["step"]  # type: ignore[union-attr, misc]
        loader = iter(made.train_dataloader())
        seen = []
        for _ in range(steps):
            seen.append([next(loader).windows.numpy() for _ in range(BATCH // (MICRO_BATCH * world))])
            made.trainer.global_step += 1  # type: ignore[union-attr, misc]
        answer.send((np.array(seen), made.state_dict()))

    def run(
        self, order: str, workers: int, world: int, state: dict[str, Any] | None, steps: int
    ) -> tuple[np.ndarray, dict[str, Any]]:
        """The global batches of these steps, (steps, BATCH, T + 1), and the state after them."""
        context = multiprocessing.get_context("fork")
        pipes, ranks = [], []
        for rank in range(world):
            answer, question = context.Pipe(duplex=False)
            process = context.Process(target=self.rank, args=(order, workers, rank, world, state, steps, question))
            process.start()
            question.close()
            pipes.append(answer)
            ranks.append(process)
        answers = [pipe.recv() for pipe in pipes]
        for process in ranks:
            process.join()
        states = [saved for _, saved in answers]
        assert all(saved == states[0] for saved in states), "every rank would save the same state"
        # (ranks, steps, accumulation, micro-batch, tokens): a global micro-batch is the ranks' slices side by side
        batches = np.stack([seen for seen, _ in answers], axis=2)
        return batches.reshape(steps, BATCH, T + 1), states[0]


def check_grid(
    cluster: Cluster, order: str, worlds: tuple[int, ...], stops: tuple[int, ...], workers: tuple[int, ...]
) -> int:
    expected = cluster.run(order, 0, 1, None, STEPS)[0]
    if order != "mixture":
        windows = cluster.module(order, 0, 0, 1).blend.windows
        assert windows < STEPS * BATCH, "the run goes on into a second epoch"
        assert len(np.unique(expected.reshape(-1, T + 1)[:windows], axis=0)) == windows

    @cache
    def stopped(world: int, stop: int, workers: int) -> dict[str, Any]:
        before, state = cluster.run(order, workers, world, None, stop)
        assert np.array_equal(before, expected[:stop])
        return state

    @cache
    def continued(world: int, saved: str, workers: int) -> np.ndarray:
        state = json.loads(saved)
        return cluster.run(order, workers, world, state, STEPS - (state["step"] if state else 0))[0]

    checked = 0
    for before, after, stop, count in itertools.product(worlds, worlds, stops, workers):
        # What goes from the one run to the other is this text and nothing else, so equal texts need one continuation.
        saved = json.dumps(stopped(before, stop, count) if stop else None)
        assert np.array_equal(continued(after, saved, count), expected[stop:]), (before, after, stop, count)
        checked += 1
    return checked


@pytest.mark.parametrize("order", list(ORDERS))
def test_other_ranks_continue_in_the_middle_of_an_epoch(store: Store, tmp_path: Path, order: str) -> None:
    assert check_grid(Cluster(store, tmp_path), order, worlds=(1, 4), stops=(4,), workers=(1,)) == 4


@pytest.mark.slow
@pytest.mark.parametrize("order", list(ORDERS))
def test_the_whole_grid_of_worlds_stops_and_workers(store: Store, tmp_path: Path, order: str) -> None:
    assert check_grid(Cluster(store, tmp_path), order, WORLDS, STOPS, workers=(0, 2)) == 200
