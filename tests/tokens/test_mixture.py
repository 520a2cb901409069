from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings, strategies as st

from skytrain.config import SkytrainError
from skytrain.storage import Store
from skytrain.tokens import TokenSplit
from skytrain.tokens.blend import Blend
from skytrain.tokens.mixture import Mixture, Phase

from .conftest import documents, write_split


def farthest_from_exact(mixture: Mixture, phases: list[Phase], length: int) -> Fraction:
    """The largest distance, over every prefix and source, between what was drawn and the sum of the shares."""
    sources, indices = mixture.at(np.arange(length))
    shares = [Fraction(0)] * len(mixture.names)
    counts = [0] * len(mixture.names)
    worst = Fraction(0)
    for position, (source, index) in enumerate(zip(sources.tolist(), indices.tolist(), strict=True)):
        weights = [
            Fraction(repr(weight)) for weight in [phase for phase in phases if phase.start <= position][-1].weights
        ]
        shares = [share + weight / sum(weights) for share, weight in zip(shares, weights, strict=True)]
        assert index == counts[source], "a source's samples come in its own order, none left out"
        counts[source] += 1
        worst = max(worst, *(abs(share - count) for share, count in zip(shares, counts, strict=True)))
    return worst


WEIGHTS = st.integers(1, 5).flatmap(
    lambda k: st.tuples(*[st.lists(st.integers(1, 40), min_size=k + 1, max_size=k + 1) for _ in range(3)])
)


@settings(max_examples=40)
@given(weights=WEIGHTS, changes=st.tuples(st.integers(1, 60), st.integers(1, 60)))
# The rarest sources are due after the change, and then earlier than at their old rate.
@example(weights=([6, 22, 23, 3, 3], [1, 1, 1, 1, 1], [1, 2, 3, 4, 5]), changes=(16, 5))
def test_every_prefix_is_within_one_sample_of_the_exact_proportions_also_when_weights_change(
    weights: Any, changes: tuple[int, int]
) -> None:
    starts = [0, changes[0], changes[0] + changes[1]]
    phases = [Phase(start, tuple(map(float, each))) for start, each in zip(starts, weights, strict=True)]
    mixture = Mixture([str(i) for i in range(len(weights[0]))], phases)
    assert farthest_from_exact(mixture, phases, 120) < 1


def test_samples_far_before_a_change_come_as_if_there_were_none() -> None:
    weights = (0.7, 0.2, 0.1)
    alone = Mixture(["a", "b", "c"], [Phase(0, weights)])
    changing = Mixture(["a", "b", "c"], [Phase(0, weights), Phase(10**9, (0.1, 0.2, 0.7))])
    for start in (0, 10**9 - 200):
        positions = np.arange(start, start + 150)
        for found, expected in zip(changing.at(positions), alone.at(positions), strict=True):
            assert np.array_equal(found, expected)


def test_many_small_sources_beside_a_large_one_stay_within_one_sample() -> None:
    phases = [Phase(0, (0.5, *[0.01] * 50))]
    mixture = Mixture([str(i) for i in range(51)], phases)
    assert farthest_from_exact(mixture, phases, 120) < 1


def test_decimal_weights_mean_what_they_say() -> None:
    mixture = Mixture(["a", "b", "c"], [Phase(0, (0.7, 0.2, 0.1))])
    assert mixture.counts(10) == {"a": 7, "b": 2, "c": 1}
    assert mixture.counts(10**12) == {"a": 7 * 10**11, "b": 2 * 10**11, "c": 10**11}


def test_a_position_far_away_costs_nothing_and_agrees_with_the_counts() -> None:
    mixture = Mixture(["a", "b"], [Phase(0, (3.0, 1.0)), Phase(1001, (1.0, 1.0))])
    position = 10**15 + 7
    source, index = (int(x[0]) for x in mixture.at(np.array([position])))
    assert index == list(mixture.counts(position).values())[source]


@pytest.mark.parametrize("weight", [0.0, -1.0, float("nan"), float("inf")])
def test_a_weight_that_is_no_weight_is_refused_with_its_source(weight: float) -> None:
    with pytest.raises(SkytrainError, match="'code' of the mixture has weight"):
        Mixture(["web", "code"], [Phase(0, (1.0, weight))])


def test_weights_that_never_repeat_are_refused() -> None:
    with pytest.raises(SkytrainError, match="write them with fewer digits"):
        Mixture(["web", "code"], [Phase(0, (0.123456789123, 0.987654321987))])


def blend(store: Store, **settings: Any) -> Blend:
    sources = {}
    for name, count in (("web", 60), ("code", 20)):
        write_split(store, documents(count, seed=count), prefix=f"tokens/{name}", shard_tokens=200)
        sources[name] = TokenSplit.open(store, f"tokens/{name}")
    return Blend(sources, 16, seed=5, phases=[Phase(0, (3.0, 1.0))], **settings)


@pytest.mark.parametrize("shuffle", ["global", "blocks"])
def test_each_source_goes_through_its_own_epochs(store: Store, shuffle: Any) -> None:
    both = blend(store, shuffle=shuffle, block_shards=2)
    windows = both.at(np.arange(4 * 100))
    code = windows[windows >= both.first_window[1]] - both.first_window[1]
    count = both.splits[1].windows(16)
    assert len(code) == 100 and len(code) > 2 * count
    for epoch in range(len(code) // count):
        assert np.array_equal(np.sort(code[epoch * count : (epoch + 1) * count]), np.arange(count))
    assert both.epochs(400) == {"web": 300 / both.splits[0].windows(16), "code": 100 / count}


def test_a_batch_of_a_mixture_holds_the_windows_of_its_sources(store: Store) -> None:
    both = blend(store)
    web, code = both.splits
    batch = both.batch(np.array([3, both.first_window[1] + 2, 0]))
    sources = [(web, 3), (code, 2), (web, 0)]
    expected = [split.batch(np.array([window]), 16).windows[0].numpy() for split, window in sources]
    assert np.array_equal(batch.windows.numpy(), expected)


def test_an_empty_source_is_refused_by_name(store: Store) -> None:
    write_split(store, documents(20), prefix="tokens/web")
    write_split(store, [], prefix="tokens/none")
    sources = {name: TokenSplit.open(store, f"tokens/{name}") for name in ("web", "none")}
    with pytest.raises(SkytrainError, match="source 'none' of the mixture has 0 tokens"):
        Blend(sources, 16, seed=0, phases=[Phase(0, (1.0, 1.0))])
