"""Each method against a plain reference in numpy, in float64, value by value."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from skytrain.config import SkytrainError
from skytrain.merging import MergeMethod
from skytrain.merging.methods import combine

SHAPES = ((7, 5), (11,), (), (3, 4, 2))


def models(count: int, shape: tuple[int, ...], seed: int = 0) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(shape, generator=generator) for _ in range(count)]


def flat(tensor: torch.Tensor) -> list[float]:
    return tensor.double().reshape(-1).tolist()


def assert_equal(found: torch.Tensor, expected: list[float]) -> None:
    assert found.dtype == torch.float32
    np.testing.assert_allclose(flat(found), expected, rtol=0, atol=1e-6)


def plain_ties(base: list[float], others: list[list[float]], weights: list[float], density: float) -> list[float]:
    trimmed = []
    for values in others:
        deltas = [value - start for value, start in zip(values, base, strict=True)]
        kept = sorted(range(len(deltas)), key=lambda n: -abs(deltas[n]))[: max(1, int(density * len(deltas)))]
        trimmed.append([delta if n in kept else 0.0 for n, delta in enumerate(deltas)])
    return [start + plain_agreement([each[n] for each in trimmed], weights) for n, start in enumerate(base)]


def plain_agreement(deltas: list[float], weights: list[float]) -> float:
    elected = sum(delta * weight for delta, weight in zip(deltas, weights, strict=True))
    agreeing = [(d, w) for d, w in zip(deltas, weights, strict=True) if d * elected > 0]
    return sum(d * w for d, w in agreeing) / sum(w for _, w in agreeing) if agreeing else 0.0


@pytest.mark.parametrize("shape", SHAPES)
def test_an_average_is_the_weighted_sum(shape):
    a, b, c = models(3, shape)
    found = combine(MergeMethod("average", (0.5, 0.3, 0.2)), "x", [a, b, c])
    assert_equal(found, [0.5 * x + 0.3 * y + 0.2 * z for x, y, z in zip(flat(a), flat(b), flat(c), strict=True)])


@pytest.mark.parametrize("t", [0.0, 0.25, 0.5, 1.0])
def test_slerp_follows_the_great_circle(t):
    a, b = models(2, (7, 5))
    x, y = np.array(flat(a)), np.array(flat(b))
    angle = math.acos(float(x @ y / np.linalg.norm(x) / np.linalg.norm(y)))
    expected = (math.sin((1 - t) * angle) * x + math.sin(t * angle) * y) / math.sin(angle)
    assert_equal(combine(MergeMethod("slerp", (1 - t, t)), "x", [a, b]), expected.tolist())


def test_slerp_of_parallel_tensors_is_their_average():
    a = models(1, (7, 5))[0]
    assert_equal(combine(MergeMethod("slerp", (0.5, 0.5)), "x", [a, 1.001 * a]), [1.0005 * x for x in flat(a)])
    zero = torch.zeros(7, 5)
    assert_equal(combine(MergeMethod("slerp", (0.5, 0.5)), "x", [a, zero]), [0.5 * x for x in flat(a)])


@pytest.mark.parametrize("shape", SHAPES)
def test_task_arithmetic_adds_scaled_differences(shape):
    base, a, b = models(3, shape)
    found = combine(MergeMethod("task-arithmetic", (0.4, -0.3), scale=2.0), "x", [a, b], base)
    assert_equal(
        found,
        [s + 2 * (0.4 * (x - s) - 0.3 * (y - s)) for s, x, y in zip(flat(base), flat(a), flat(b), strict=True)],
    )


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("density", [0.2, 0.5, 1.0])
def test_ties_averages_the_largest_differences_that_agree(shape, density):
    base, *others = models(4, shape)
    weights = [0.5, 0.3, 0.2]
    found = combine(MergeMethod("ties", tuple(weights), density=density), "x", others, base)
    assert_equal(found, plain_ties(flat(base), [flat(each) for each in others], weights, density))


def test_dare_keeps_the_differences_it_draws_scaled_up_and_no_others():
    base, a = models(2, (200, 50))
    method = MergeMethod("dare", (1.0,), density=0.25, seed=3)
    found = combine(method, "x", [a], base)
    grown, kept = (a - base) / 0.25, ~torch.isclose(found, base)
    torch.testing.assert_close(found[kept], (base + grown)[kept], rtol=0, atol=1e-5)
    assert abs(float(kept.float().mean()) - 0.25) < 0.02
    assert torch.equal(found, combine(method, "x", [a], base)), "the same seed draws the same"
    assert not torch.equal(found, combine(method, "y", [a], base)), "each tensor draws its own"
    assert not torch.equal(found, combine(MergeMethod("dare", (1.0,), density=0.25, seed=4), "x", [a], base))
    assert abs(float((found - base).mean() - (a - base).mean())) < 0.1, "unbiased"


def test_dare_ties_elects_signs_among_what_is_left():
    base, a, b = models(3, (40, 30))
    alone = [combine(MergeMethod("dare", (1.0,), density=0.5), "x", [each], base) for each in (a, b)]
    first = (alone[0] - base).double()
    found = combine(MergeMethod("dare-ties", (0.5, 0.5), density=0.5, normalize=True), "x", [a, b], base)
    # The second model draws other numbers than a merge of it alone; where it was dropped, the first decides.
    second_dropped = torch.isclose(found.double(), base + first, atol=1e-5)
    assert second_dropped.float().mean() > 0.2
    assert torch.equal(
        combine(MergeMethod("dare-ties", (0.5, 0.5), density=1.0, normalize=True), "x", [a, b], base),
        combine(MergeMethod("ties", (0.5, 0.5), density=1.0), "x", [a, b], base),
    )


def test_dare_ties_sums_what_agrees_by_its_weights_as_mergekit_does_by_default():
    base = torch.zeros(4)
    a, b = torch.tensor([1.0, 1.0, -1.0, 2.0]), torch.tensor([3.0, -0.5, -3.0, -2.5])
    assert_equal(combine(MergeMethod("dare-ties", (0.5, 0.5)), "x", [a, b], base), [2.0, 0.5, -2.0, -1.25])
    assert_equal(combine(MergeMethod("ties", (0.5, 0.5)), "x", [a, b], base), [2.0, 1.0, -2.0, -2.5])
    summed = MergeMethod("ties", (0.5, 0.5), normalize=False)
    assert_equal(combine(summed, "x", [a, b], base), [2.0, 0.5, -2.0, -1.25])


def test_where_differences_cancel_exactly_ties_elects_the_positive_ones_as_mergekit_does():
    a, b = torch.tensor([0.5, -0.25, 0.0]), torch.tensor([-0.5, 0.25, 0.0])
    assert_equal(combine(MergeMethod("ties", (0.5, 0.5)), "x", [a, b], torch.zeros(3)), [0.5, 0.25, 0.0])


@pytest.mark.parametrize("name", ["average", "slerp", "ties", "dare", "task-arithmetic"])
@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_values_that_are_not_finite_are_refused_by_the_name_of_their_tensor(name, value):
    base, a, b = models(3, (4, 5))
    b[1, 2] = value
    method = MergeMethod(name, (0.5, 0.5))
    with pytest.raises(SkytrainError, match=r"blocks\.0\.mlp of model 2 is NaN or infinite in 1 value:"):
        combine(method, "blocks.0.mlp", [a, b], base if method.needs_base else None)


def test_what_is_equal_in_all_models_stays_as_it_is():
    a, base = models(2, (7, 5))
    for method in (MergeMethod("average", (0.3, 0.7)), MergeMethod("slerp", (0.3, 0.7))):
        assert torch.equal(combine(method, "x", [a, a.clone()]), a)
    assert torch.equal(combine(MergeMethod("ties", (0.5, 0.5)), "x", [base, base], base), base)
    counts, flags = torch.tensor([3, 4]), torch.tensor([True, False])
    assert torch.equal(combine(MergeMethod("average", (0.5, 0.5)), "x", [counts, counts + 1]), counts)
    assert combine(MergeMethod("average", (0.5, 0.5)), "x", [flags, ~flags]).dtype == torch.bool


def test_half_precision_is_merged_in_float32():
    a, b = (each.bfloat16() for each in models(2, (50,)))
    found = combine(MergeMethod("average", (0.5, 0.5)), "x", [a, b])
    assert_equal(found, [0.5 * x + 0.5 * y for x, y in zip(flat(a), flat(b), strict=True)])


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: MergeMethod("average", (0.7, 0.7)), r"sum to 1.4, and must sum to 1\n  --weights 0.5,0.5"),
        (lambda: MergeMethod("average", (1.5, -0.5)), "must not be negative"),
        (lambda: MergeMethod("average", (float("nan"), 1.0)), "--weights nan,1: give finite numbers"),
        (lambda: MergeMethod("task-arithmetic", (float("nan"), 1.0)), "--weights nan,1: give finite numbers"),
        (lambda: MergeMethod("ties", (float("inf"), 1.0)), "--weights inf,1: give finite numbers"),
        (lambda: MergeMethod("dare", (1.0, 1.0), scale=float("nan")), "--scale nan: give finite numbers"),
        (lambda: MergeMethod("slerp", (0.3, 0.3, 0.4)), "slerp merges two models, and 3 were given"),
        (lambda: MergeMethod("ties", (1.0, 1.0), density=0.0), "--density 0.0: must be more than 0"),
    ],
)
def test_settings_that_make_no_sense_are_refused(make, message):
    with pytest.raises(SkytrainError, match=message):
        make()
