"""An ensemble against Bayes' rule written out token by token."""

from __future__ import annotations

import math
import shutil
from pathlib import Path

import pytest
import torch

from skytrain.checkpoints import load_model
from skytrain.config import SkytrainError
from skytrain.evaluation import EnsembleModel, Sampling, WholeModel, generate, place_model
from skytrain.pipelines.evaluate import LossRequest, evaluate
from skytrain.pipelines.merge import MergeRequest, merge
from skytrain.runs import Silent
from skytrain.storage import open_store
from tests.support.tiny import tiny_config


@pytest.fixture(scope="module")
def experts(forest) -> list[WholeModel]:
    return [WholeModel(load_model(open_store(str(forest)), run).model) for run in ("one@4", "two@4")]


def plain_mixture(experts: list[WholeModel], prior: list[float], tokens: list[int]) -> tuple[list[float], list[float]]:
    """The mixture's log-probability of each token after the first, and the posterior after the last."""
    posterior, found = list(prior), []
    logits = [each.all_logits(torch.tensor([tokens]))[0].double().log_softmax(-1) for each in experts]
    for place, token in enumerate(tokens[1:]):
        each = [math.exp(logit[place, token]) for logit in logits]
        mixed = sum(p * q for p, q in zip(posterior, each, strict=True))
        found.append(math.log(mixed))
        posterior = [p * q / mixed for p, q in zip(posterior, each, strict=True)]
    return found, posterior


def rows(count: int) -> torch.Tensor:
    return torch.randint(0, 200, (count, 17), generator=torch.Generator().manual_seed(5))


def test_the_loss_is_that_of_the_mixture_with_the_posterior_as_weights(experts):
    prior, batch = [0.3, 0.7], rows(4)
    expected = [value for row in batch.tolist() for value in plain_mixture(experts, prior, row)[0]]
    found = EnsembleModel(experts, prior).mean_loss([batch[:3], batch[3:]])
    assert found == pytest.approx(-sum(expected) / len(expected), abs=1e-6)


def test_an_updating_prior_follows_the_windows_before(experts):
    prior, nats = [0.5, 0.5], 0.0
    batch = rows(4)
    for row in batch.tolist():
        found, posterior = plain_mixture(experts, prior, row)
        nats -= sum(found)
        prior = [0.7 * p + 0.3 * q for p, q in zip(prior, posterior, strict=True)]
    model = EnsembleModel(experts, [0.5, 0.5], updating=True)
    assert model.mean_loss([batch]) == pytest.approx(nats / (4 * 16), abs=1e-6)
    assert model.mean_loss([batch]) == model.mean_loss([batch[:2], batch[2:]]), "each call starts anew"
    assert abs(model.mean_loss([batch]) - EnsembleModel(experts, [0.5, 0.5]).mean_loss([batch])) > 1e-9


def test_scores_of_targets_and_logits_are_the_same_mixture(experts):
    prior, row = [0.3, 0.7], rows(1)
    model = EnsembleModel(experts, prior)
    expected = plain_mixture(experts, prior, row[0].tolist())[0]
    scores = model.target_scores(row[:, :-1], row[:, 1:])
    torch.testing.assert_close(
        scores.log_probs[0].double(), torch.tensor(expected, dtype=torch.float64), rtol=0, atol=1e-5
    )
    last = model.last_logits(row[0, :-1].tolist())
    assert float(last.exp().sum()) == pytest.approx(1, abs=1e-5)
    assert float(last[row[0, -1]]) == pytest.approx(expected[-1], abs=1e-5)
    assert bool(scores.greedy[0, -1]) == (int(last.argmax()) == int(row[0, -1]))


def test_a_cache_changes_nothing(experts):
    model, tokens = EnsembleModel(experts, [0.3, 0.7]), rows(1)[0].tolist()
    cache = model.new_cache(len(tokens))
    for end in (5, 6, 9, 17):
        torch.testing.assert_close(
            model.last_logits(tokens[:end], cache), model.last_logits(tokens[:end]), rtol=0, atol=1e-5
        )


def test_one_expert_is_itself(experts):
    batch = rows(3)
    assert EnsembleModel(experts[:1], [1.0]).mean_loss([batch]) == pytest.approx(
        experts[0].mean_loss([batch]), abs=1e-6
    )
    assert EnsembleModel(experts, [0.0, 1.0]).mean_loss([batch]) == pytest.approx(
        experts[1].mean_loss([batch]), abs=1e-6
    )


def test_an_ensemble_is_a_run_for_evaluate_and_generate(forest, tmp_path):
    root = Path(shutil.copytree(forest, tmp_path / "store"))
    config, store = tiny_config(root), open_store(str(root))
    for prior in ("uniform", "cached", "updating"):
        made = merge(
            tiny_config(root, f"run={prior}"), MergeRequest(("one", "two"), method="ensemble", prior=prior), Silent()
        )
        assert made.made.method == "ensemble" and sum(each.weight for each in made.made.inputs) == pytest.approx(1)
    label, mixed = evaluate(config, LossRequest("uniform"), Silent())
    alone = [evaluate(config, LossRequest(run), Silent())[1].loss for run in ("one", "two")]
    assert label == "uniform" and mixed.loss < max(alone)
    placed = place_model(config, store, "cached")
    text = "".join(generate(placed.model, placed.tokenizer, "ab", Sampling(temperature=0), max_tokens=8))
    assert text == "".join(generate(placed.model, placed.tokenizer, "ab", Sampling(temperature=0), max_tokens=8))
    with pytest.raises(SkytrainError, match="run uniform is an ensemble of one@4, two@4, and has no weights"):
        load_model(store, "uniform")
    again = merge(
        tiny_config(root, "run=uniform"), MergeRequest(("one", "two"), method="ensemble", prior="uniform"), Silent()
    )
    assert again.existed


@pytest.mark.parametrize("method", ["greedy", "posterior"])
def test_held_out_text_finds_the_weights(forest, tmp_path, method):
    root = Path(shutil.copytree(forest, tmp_path / "store"))
    made = merge(tiny_config(root, "run=found"), MergeRequest(("one", "two", "seed@2"), method=method), Silent()).made
    assert made.notes and sum(each.weight for each in made.inputs) == pytest.approx(1)
    loss = evaluate(tiny_config(root), LossRequest("found"), Silent())[1].loss
    losses = [evaluate(tiny_config(root), LossRequest(run), Silent())[1].loss for run in ("one", "two", "seed@2")]
    assert loss <= (min(losses) if method == "greedy" else max(losses)) + 1e-6
