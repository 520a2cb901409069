"""Weights that are found: greedy soups, domain posteriors, moving averages."""

from __future__ import annotations

import pytest
import torch

from skytrain.config import SkytrainError
from skytrain.merging import ema_weights, greedy_soup, posterior_weights


def test_a_moving_average_weights_models_as_the_recursion_does():
    values = [3.0, -1.0, 4.0, 2.5]
    mean = values[0]
    for value in values[1:]:
        mean = 0.8 * mean + 0.2 * value
    weights = ema_weights(4, 0.8)
    assert sum(weight * value for weight, value in zip(weights, values, strict=True)) == pytest.approx(mean, abs=1e-12)
    assert sum(weights) == pytest.approx(1)
    assert ema_weights(3, 0.0) == (0.0, 0.0, 1.0)
    with pytest.raises(SkytrainError, match=r"--decay 1.0: must be at least 0 and less than 1"):
        ema_weights(3, 1.0)


def test_a_greedy_soup_adds_models_from_the_best_on_and_only_where_they_help():
    """The loss of an average is its distance from 1; the models are numbers."""
    models = {"far": 9.0, "low": 0.7, "high": 1.2, "same": 1.2}

    def loss_of(weights: tuple[float, ...]) -> float:
        return abs(sum(w * value for w, value in zip(weights, models.values(), strict=True)) - 1)

    found = greedy_soup(list(models), loss_of)
    # 1.2 alone is 0.2 away; with its equal no better; with 0.7 it is 0.95, so 0.05 away; 9 spoils it.
    assert found.weights == (0.0, 0.5, 0.5, 0.0)
    assert [note.partition(":")[0] for note in found.notes] == [
        "high alone",
        "same left out",
        "low added",
        "far left out",
    ]


def test_a_posterior_is_the_mean_over_windows_of_bayes_rule():
    likelihoods = torch.tensor([[-10.0, -12.0, -50.0], [-11.0, -10.0, -40.0]])
    odds = [torch.tensor(1 / (1 + torch.e ** (b - a))).item() for a, b in likelihoods.T.tolist()]
    found = posterior_weights(["a", "b"], likelihoods)
    assert found.weights[0] == pytest.approx(sum(odds) / 3)
    assert sum(found.weights) == pytest.approx(1)


def test_a_model_whose_training_diverged_is_no_part_of_a_soup_and_has_no_posterior():
    losses = {(1.0, 0.0): float("nan"), (0.0, 1.0): 3.0, (0.5, 0.5): float("nan")}
    assert greedy_soup(["lost", "good"], losses.__getitem__).weights == (0.0, 1.0)
    with pytest.raises(SkytrainError, match="no model has a finite held-out loss"):
        greedy_soup(["lost", "too"], lambda weights: float("nan"))
    with pytest.raises(SkytrainError, match="lost gives held-out text no finite probability"):
        posterior_weights(["good", "lost"], torch.tensor([[-1.0], [float("nan")]]))
