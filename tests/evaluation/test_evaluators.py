"""Evaluators after training, on a whole model; on meshes the equivalence table has them."""

import math

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

from skytrain.config import compose
from skytrain.evaluation import HeldOut, ValidationLoss, WholeModel, evaluate_loss
from skytrain.evaluation.loss import HeldOutLoss
from skytrain.jobs import Ranks
from skytrain.models import build_model
from skytrain.runs import Silent
from skytrain.storage import open_store
from skytrain.tokens import Batch
from skytrain.training import make_module, make_trainer, plan_training
from skytrain.training.evaluation_limits import EvaluationLimits
from skytrain.training.evaluations import Evaluations, Scheduled
from skytrain.training.interruptions import Interruptions, Signals, StopSources
from tests.support.tiny import ONE_LAYER


class Rows:
    """Five windows of random tokens, as a split of a prepared data set gives them."""

    def __init__(self, length: int) -> None:
        self.rows = np.random.default_rng(0).integers(0, 256, (5, length + 1))

    def windows(self, length: int) -> int:
        return len(self.rows)

    def batch(self, indices: np.ndarray, length: int, *, document_starts: bool) -> Batch:
        return Batch(torch.from_numpy(self.rows[indices]))


def test_the_validation_loss_is_the_mean_of_the_targets_negative_log_probabilities():
    model = WholeModel(build_model(compose(ONE_LAYER).config.model, seed=1))
    batches = torch.randint(0, 256, (5, 9), generator=torch.Generator().manual_seed(0)).split(2)
    evaluator = ValidationLoss(lambda: batches)
    evaluator.prepare()
    found, perplexity = evaluator.run(model).values()
    rows = torch.cat(batches)
    expected = -model.log_probs(rows[:, :-1], rows[:, 1:]).double().mean()
    assert abs(found - float(expected)) < 1e-6 and perplexity == pytest.approx(math.exp(found))


def test_an_evaluator_is_due_at_its_steps_and_at_the_end_where_it_is_asked_for():
    every_ten, at_end = Scheduled(ValidationLoss(list), 10), Scheduled(ValidationLoss(list), None, at_end=True)
    assert [step for step in range(1, 26) if every_ten.due(step, 25)] == [10, 20]
    assert [step for step in range(1, 26) if at_end.due(step, 25)] == [25]


def test_the_evaluator_of_the_command_line_runs_in_the_training_loop_too(tmp_path):
    config = compose(
        [*ONE_LAYER, "trainer.steps=1", "trainer.sequence_length=8", "trainer.batch_tokens=16", "trainer.micro_batch=2"]
    ).config
    length = config.trainer.sequence_length
    plan, held_out = plan_training(config), HeldOut(Rows(length), None, length, batch=2)
    measured: dict[str, float] = {}
    limits = EvaluationLimits(Ranks(), Interruptions(Silent(), Ranks(), StopSources(Signals())), print)
    evaluations = Evaluations(
        [Scheduled(HeldOutLoss(held_out), every=1)],
        [lambda trainer, step, metrics: measured.update(metrics)],
        limits,
        end=lambda trainer, module, step: pytest.fail("nothing stops it"),
    )
    module = make_module(config, plan, build_model(config.model, seed=1), lambda text: None)
    trainer = make_trainer(config, plan, open_store(str(tmp_path)), [evaluations], [])
    trainer.fit(module, DataLoader([torch.zeros(2, length + 1, dtype=torch.long)] * 4, batch_size=None))
    after = evaluate_loss(WholeModel(module.model), held_out)
    assert measured["eval/loss"] == pytest.approx(after.loss, rel=1e-9)
    assert measured["eval/perplexity"] == pytest.approx(after.perplexity, rel=1e-9)
