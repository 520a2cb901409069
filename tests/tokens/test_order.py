from __future__ import annotations

from itertools import pairwise

import numpy as np
from hypothesis import given, strategies as st

from skytrain.tokens.order import BlockOrder, window_order, windows_at


@given(seed=st.integers(0, 2**63), epoch=st.integers(0, 10**6), count=st.integers(1, 3000))
def test_an_epoch_holds_every_window_exactly_once(seed: int, epoch: int, count: int) -> None:
    order = window_order(seed, epoch, count)(np.arange(count))
    assert np.array_equal(np.sort(order), np.arange(count))


@given(count=st.integers(2**40, 2**62), position=st.integers(0, 2**40 - 2))
def test_a_position_in_a_huge_epoch_is_found_without_the_rest(count: int, position: int) -> None:
    images = window_order(7, 0, count)(np.array([position, position + 1]))
    assert images.min() >= 0 and images.max() < count and images[0] != images[1]


def test_asking_in_pieces_gives_the_same_order_as_asking_at_once() -> None:
    order = window_order(1, 2, 1001)
    whole = order(np.arange(1001))
    assert np.array_equal(np.concatenate([order(np.arange(0, 300)), order(np.arange(300, 1001))]), whole)


def test_seeds_and_epochs_have_orders_of_their_own() -> None:
    orders = [window_order(seed, epoch, 1000)(np.arange(1000)) for seed in (0, 1) for epoch in (0, 1)]
    # Two independent orders of n agree on one place on average.
    agreements = [int((a == b).sum()) for i, a in enumerate(orders) for b in orders[:i]]
    assert max(agreements) <= 8


def test_neighbours_are_scattered_over_the_whole_epoch() -> None:
    count = 100_003
    order = window_order(3, 0, count)(np.arange(count)).astype(np.float64)
    # Independent positions: the distance of neighbours is a third of the range on average, and their correlation is nil.
    assert abs(np.abs(np.diff(order)).mean() / count - 1 / 3) < 0.01
    assert abs(np.corrcoef(order[:-1], order[1:])[0, 1]) < 0.015
    assert abs(np.corrcoef(order, np.arange(count))[0, 1]) < 0.015


def test_positions_run_on_from_one_epoch_into_the_next() -> None:
    count = 37
    windows = windows_at(np.arange(3 * count), seed=5, count=count)
    for epoch in range(3):
        mine = windows[epoch * count : (epoch + 1) * count]
        assert np.array_equal(mine, window_order(5, epoch, count)(np.arange(count)))


def test_the_order_never_changes_between_versions() -> None:
    # A run resumed with newer code must go on with the order that it began with.
    assert windows_at(np.array([0, 1, 2, 1000, 1001, 2**40]), seed=1337, count=1000).tolist() == [
        125,
        836,
        244,
        174,
        719,
        231,
    ]


@given(
    seed=st.integers(0, 100),
    shard_windows=st.lists(st.integers(0, 30), min_size=1, max_size=30).filter(any),
    block_shards=st.integers(1, 6),
)
def test_an_epoch_of_blocks_holds_every_window_exactly_once(
    seed: int, shard_windows: list[int], block_shards: int
) -> None:
    order = BlockOrder(seed, shard_windows, block_shards)
    for epoch in (0, 3):
        positions = epoch * order.windows + np.arange(order.windows)
        assert np.array_equal(np.sort(order.at(positions)), np.arange(order.windows))


def test_blocks_touch_few_shards_at_a_time_and_begin_with_one() -> None:
    order = BlockOrder(1, [100] * 40, block_shards=4)
    shards = order.at(np.arange(order.windows)) // 100
    bounds = np.cumsum([0, 1, 2, *[4] * 9, 1]) * 100
    blocks = [set(shards[start:end].tolist()) for start, end in pairwise(bounds.tolist())]
    assert [len(block) for block in blocks] == [1, 2, *[4] * 9, 1]
    assert set().union(*blocks) == set(range(40))


def test_blocks_shuffle_windows_within_a_block_and_shards_within_an_epoch() -> None:
    order = BlockOrder(1, [100] * 40, block_shards=4)
    first, second = (order.at(epoch * order.windows + np.arange(order.windows)) for epoch in (0, 1))
    assert (np.diff(first) == 1).mean() < 0.02, "windows that follow each other in a shard hardly ever do in the order"
    assert (first == second).mean() < 0.01, "another epoch is another order"


def test_the_order_of_blocks_never_changes_between_versions() -> None:
    order = BlockOrder(1337, [50, 0, 70, 30, 90], block_shards=2)
    assert order.at(np.array([0, 1, 100, 239, 240, 10**12])).tolist() == [15, 3, 116, 129, 73, 169]
