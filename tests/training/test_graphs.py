"""What can be said of CUDA graphs without a GPU; with one, that they compute what the plain call does."""

import pytest
import torch

from skytrain.config import compose
from skytrain.models import build_model, lm_loss
from skytrain.training.graphs import GraphedLoss, stand_ins
from tests.support.tiny import ONE_LAYER


def tiny():
    model = build_model(compose(list(ONE_LAYER)).config.model, seed=0)
    tokens = torch.randint(0, 257, (3, 9), generator=torch.Generator().manual_seed(0))
    return model, tokens[:, :-1], tokens[:, 1:]


def test_stand_ins_share_memory_with_the_parameters_and_take_their_gradients():
    model, tokens, targets = tiny()
    before = dict(model.named_parameters())
    lm_loss(model, tokens, targets).backward()
    expected = [parameter.grad.clone() for parameter in model.parameters()]
    model.zero_grad()
    with stand_ins(model) as leaves:
        lm_loss(model, tokens, targets).backward()
        assert model.head.projection.weight is model.embedding.tokens.weight, "a tied head stays tied"
    for leaf, parameter, gradient in zip(leaves, model.parameters(), expected, strict=True):
        assert leaf.data_ptr() == parameter.data_ptr()
        assert parameter.grad is None
        torch.testing.assert_close(leaf.grad, gradient)
    assert all(before[name] is parameter for name, parameter in model.named_parameters())


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_graphed_loss_accumulates_the_gradients_of_the_plain_one():
    model, tokens, targets = (each.cuda() for each in tiny())
    held = lm_loss(model, tokens, targets)  # keeps nodes of the default stream alive
    graphed = GraphedLoss(lambda x, y: lm_loss(model, x, y), model)
    for _ in range(2):
        model.zero_grad()
        for shift in (0, 1):
            (lm_loss(model, (tokens + shift) % 257, targets) / 2).backward()
        expected = [parameter.grad.clone() for parameter in model.parameters()]
        model.zero_grad()
        for shift in (0, 1):
            (graphed((tokens + shift) % 257, targets) / 2).backward()
        for parameter, gradient in zip(model.parameters(), expected, strict=True):
            torch.testing.assert_close(parameter.grad, gradient)
    del held
