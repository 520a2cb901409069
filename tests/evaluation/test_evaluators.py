"""Evaluators after training, on a whole model; on meshes the equivalence table has them."""

import torch

from skytrain.config.composition import compose
from skytrain.evaluation import WholeModel
from skytrain.evaluation.evaluators import ValidationLoss
from skytrain.models import build_model
from skytrain.training.evaluations import Scheduled
from tests.support.tiny import ONE_LAYER


def test_the_validation_loss_is_the_mean_of_the_targets_negative_log_probabilities():
    model = WholeModel(build_model(compose(ONE_LAYER).config.model, seed=1))
    batches = torch.randint(0, 256, (5, 9), generator=torch.Generator().manual_seed(0)).split(2)
    evaluator = ValidationLoss(lambda: batches)
    evaluator.prepare()
    (found,) = evaluator.run(model).values()
    rows = torch.cat(batches)
    expected = -model.log_probs(rows[:, :-1], rows[:, 1:]).double().mean()
    assert abs(found - float(expected)) < 1e-6


def test_an_evaluator_is_due_at_its_steps_and_at_the_end_where_it_is_asked_for():
    every_ten, at_end = Scheduled(ValidationLoss(list), 10), Scheduled(ValidationLoss(list), None, at_end=True)
    assert [step for step in range(1, 26) if every_ten.due(step, 25)] == [10, 20]
    assert [step for step in range(1, 26) if at_end.due(step, 25)] == [25]
