"""Blocks streamed from S3 through a cache that holds only a few shards."""

from __future__ import annotations

import itertools
import multiprocessing
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from skytrain.config import BatchSizes, SkytrainError
from skytrain.storage import Retry, Store, StoreUnreachable, open_store
from skytrain.tokens import BatchSettings, TokenDataModule, TokenSplit, datamodule
from skytrain.tokens.cache import ShardCache
from skytrain.tokens.order import BlockOrder
from tests.support.faults import FaultProxy, Kind, Request
from tests.support.s3 import FAST_RETRY

from .conftest import PREFIX, FarFolder, documents, write_split

T = 16
SHARD_BYTES = 1024 + 2 * 200


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that a small data set is looked at in many pieces, as a large one is."""
    monkeypatch.setattr(datamodule, "ORDER_CHUNK", 8)
    monkeypatch.setattr(datamodule, "STREAM_CHUNK", 8)


def stream(store: Store, cache: ShardCache, steps: int = 40, **settings: Any) -> TokenDataModule:
    split = TokenSplit.open(store, PREFIX, cache=cache, supply=False)
    values = {
        "sequence_length": T,
        "micro_batch": 2,
        "batches": BatchSizes(4),
        "seed": 3,
        "shuffle": "blocks",
        "block_shards": 2,
    }
    return TokenDataModule(split, None, BatchSettings(total_steps=steps, **{**values, **settings}))


def expected(store: Store, tmp_path: Path, count: int) -> torch.Tensor:
    """The first sequences of the run, from files that are all there."""
    split = TokenSplit.open(store, PREFIX, cache=ShardCache(tmp_path / "whole"))
    order = BlockOrder(3, split.shard_windows(T).tolist(), block_shards=2)
    return split.batch(order.at(np.arange(count)), T).windows


@pytest.mark.parametrize("workers", [0, 2])
def test_an_epoch_and_more_streams_through_a_cache_of_a_few_shards(
    s3_store: Store, tmp_path: Path, workers: int
) -> None:
    manifest = write_split(s3_store, documents(160), shard_tokens=200)
    cache = ShardCache(tmp_path / "cache", limit_bytes=8 * SHARD_BYTES)
    module = stream(s3_store, cache, steps=100, workers=workers)
    assert module.blend.windows < 100 * 4 and len(manifest.shards) > 2 * 8
    most, batches = 0, []
    for batch in module.train_dataloader():
        batches.append(batch.windows)
        most = max(most, cache.used_bytes())
    assert torch.equal(torch.cat(batches), expected(s3_store, tmp_path, 400))
    assert 2 * SHARD_BYTES < most <= 8 * SHARD_BYTES
    assert module.waited_seconds > 0


def test_the_first_batch_waits_for_one_shard_only(s3_store: Store, fault_proxy: FaultProxy, tmp_path: Path) -> None:
    write_split(s3_store, documents(80), shard_tokens=200)
    store = open_store(s3_store.root, retry=FAST_RETRY)
    module = stream(store, ShardCache(tmp_path / "cache", limit_bytes=5 * SHARD_BYTES))
    asked = []

    def hold_back_the_second(request: Request) -> bool:
        if request.method == "GET" and request.path.endswith(".bin"):
            asked.append(request.path)
        return len(set(asked)) > 1

    fault_proxy.inject("slow_down", when=hold_back_the_second)
    batch = next(iter(module.train_dataloader()))
    assert len(list((tmp_path / "cache").glob("*/tokens.bin"))) == 1
    assert torch.equal(batch.windows, expected(s3_store, tmp_path, 2))


def break_a_tenth_of_requests(proxy: FaultProxy) -> None:
    kinds: list[Kind] = ["slow_down", "reset", "cut", "wrong_bytes", "internal_error"]
    for turn, kind in enumerate(kinds):
        numbers = (
            itertools.count()
        )  # a request that an earlier kind took is not counted, so the turns are not exact: no matter

        def every_fiftieth(_: Request, numbers: Iterator[int] = numbers, turn: int = turn) -> bool:
            return next(numbers) % 50 == 10 * turn

        proxy.inject(kind, when=every_fiftieth)


def test_an_epoch_through_a_faulty_network_is_exact(
    s3_store: Store, fault_proxy: FaultProxy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("skytrain.tokens.cache.POLL_SECONDS", 0.001)
    write_split(s3_store, documents(160), shard_tokens=200)
    break_a_tenth_of_requests(fault_proxy)
    store = open_store(s3_store.root, retry=FAST_RETRY)
    module = stream(store, ShardCache(tmp_path / "cache", limit_bytes=8 * SHARD_BYTES), steps=100)
    found = torch.cat([batch.windows for batch in module.train_dataloader()])
    assert len(found) > module.blend.windows
    assert set(fault_proxy.happened) == {"slow_down", "reset", "cut", "wrong_bytes", "internal_error"}
    assert fault_proxy.happened.total() >= 0.08 * len(fault_proxy.requests)
    assert torch.equal(found, expected(s3_store, tmp_path, 400))


def test_two_runs_stream_through_one_cache(s3_store: Store, tmp_path: Path) -> None:
    write_split(s3_store, documents(80), shard_tokens=200)
    cache = ShardCache(tmp_path / "cache", limit_bytes=12 * SHARD_BYTES)
    runs = [iter(stream(s3_store, cache, seed=seed).train_dataloader()) for seed in (3, 4)]
    both = list(zip(*runs, strict=True))
    assert torch.equal(torch.cat([first.windows for first, _ in both]), expected(s3_store, tmp_path, 160))
    assert cache.used_bytes() <= 12 * SHARD_BYTES


def keep_step(folder: Path, cache: ShardCache, rank: int, world: int, step_done: Any, answer: Any) -> None:
    """A rank in a process of its own that waits for the others at every step, as a collective makes it."""
    module = stream(FarFolder(folder), cache, steps=150, batches=BatchSizes(2 * world))
    module.trainer = SimpleNamespace(distributed_sampler_kwargs={"rank": rank, "num_replicas": world}, global_step=0)  # type: ignore[assignment]
    seen = []
    for batch in module.train_dataloader():
        seen.append(batch.windows.numpy())
        step_done.wait(60)
    answer.send(np.stack(seen))


def test_ranks_that_wait_for_each_other_share_a_cache_of_two_blocks_without_a_deadlock(tmp_path: Path) -> None:
    world = 3
    write_split(FarFolder(tmp_path / "store"), documents(1000, longest=20), shard_tokens=1000)
    cache = ShardCache(tmp_path / "cache", limit_bytes=4 * (1024 + 2 * 1000), wait_seconds=30)
    context = multiprocessing.get_context("fork")
    barrier, pipes = context.Barrier(world), [context.Pipe(duplex=False) for _ in range(world)]
    ranks = [
        context.Process(target=keep_step, args=(tmp_path / "store", cache, rank, world, barrier, pipes[rank][1]))
        for rank in range(world)
    ]
    for rank in ranks:
        rank.start()
    for _, ours in pipes:
        ours.close()
    batches = np.stack([answer.recv() for answer, _ in pipes], axis=1)
    found = torch.from_numpy(batches.reshape(-1, T + 1))
    assert torch.equal(found, expected(FarFolder(tmp_path / "store"), tmp_path, 150 * 2 * world))


def test_a_cache_that_another_run_fills_is_waited_for_then_named(
    s3_store: Store, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write_split(s3_store, documents(160), shard_tokens=200)
    cache = ShardCache(tmp_path / "cache", limit_bytes=8 * SHARD_BYTES, wait_seconds=0.3)
    other_run = TokenSplit.open(s3_store, PREFIX, cache=cache, supply=False)
    other_run.supply_all(range(7))
    with (
        caplog.at_level("WARNING"),
        pytest.raises(SkytrainError, match=r"room in the cache .*\n.*own loader\.cache_dir"),
    ):
        list(stream(s3_store, cache).train_dataloader())
    assert "waiting up to" in caplog.text
    other_run.batch(np.arange(5), T)


def test_a_cache_too_small_for_the_blocks_is_refused_before_the_first_batch(s3_store: Store, tmp_path: Path) -> None:
    write_split(s3_store, documents(80), shard_tokens=200)
    module = stream(s3_store, ShardCache(tmp_path / "cache", limit_bytes=12 * SHARD_BYTES), block_shards=8)
    with pytest.raises(SkytrainError, match=r"two blocks of 8 shards take .*\n.*smaller loader\.block_shards"):
        module.train_dataloader()


def test_an_altered_shard_in_a_folder_stops_the_stream_before_it_is_read(store: Store, tmp_path: Path) -> None:
    write_split(store, documents(80), shard_tokens=200)
    path = store.local_path(f"{PREFIX}/shard-00003.bin")
    assert path is not None
    path.write_bytes(path.read_bytes()[:-1] + b"\0")
    with pytest.raises(SkytrainError, match=r"shard-00003\.bin was altered"):
        list(stream(store, ShardCache(tmp_path / "cache")).train_dataloader())


def test_a_run_left_in_the_middle_lets_go_of_its_shards(s3_store: Store, tmp_path: Path) -> None:
    write_split(s3_store, documents(80), shard_tokens=200)
    cache = ShardCache(tmp_path / "cache", limit_bytes=5 * SHARD_BYTES, wait_seconds=0)
    left = iter(stream(s3_store, cache).train_dataloader())
    next(left)
    del left
    assert len(list(stream(s3_store, cache, seed=9).train_dataloader())) == 80


def test_a_store_that_goes_away_in_the_middle_of_an_epoch_stops_the_run_resumably(
    s3_store: Store, fault_proxy: FaultProxy, tmp_path: Path
) -> None:
    write_split(s3_store, documents(160), shard_tokens=200)
    store = open_store(s3_store.root, retry=Retry(first_wait_seconds=0.001, longest_wait_seconds=0.001))
    cache = ShardCache(tmp_path / "cache", limit_bytes=8 * SHARD_BYTES, wait_seconds=0.2)
    module, seen, away = stream(store, cache, steps=100), [], False
    fault_proxy.inject("reset", when=lambda _: away)
    with pytest.raises(StoreUnreachable, match="resumes from the last checkpoint"):
        for batch in module.train_dataloader():
            seen.append(batch.windows)
            away = len(seen) > 6
    away, steps = False, len(seen) // 2  # a step is two micro-batches
    again = stream(store, cache, steps=100)
    again.load_state_dict({"position": 4 * steps, "step": steps})
    whole = torch.cat([*seen[: 2 * steps], *(batch.windows for batch in again.train_dataloader())])
    assert 6 < len(seen) < 200 and torch.equal(whole, expected(s3_store, tmp_path, 400))
