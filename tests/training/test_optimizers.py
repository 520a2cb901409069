import pytest
import torch
from torch import nn

from skytrain.config import LionConfig
from skytrain.config.compose import compose
from skytrain.models import build_model
from skytrain.training.optimizers import Lion, decay_groups, make_optimizer


@pytest.fixture(scope="module")
def model() -> nn.Module:
    return build_model(compose(["model=gpt2-tiny", "tokenizer=bytes"]).config.model, seed=0)


def test_matrices_decay_and_vectors_do_not(model):
    decaying, spared = decay_groups(model, 0.1)
    assert (decaying["weight_decay"], spared["weight_decay"]) == (0.1, 0.0)
    assert {p.ndim for p in decaying["params"]} == {2}
    assert {p.ndim for p in spared["params"]} == {1}
    assert len(decaying["params"]) + len(spared["params"]) == len(list(model.parameters()))


def test_lion_follows_the_papers_update(model):
    """Algorithm 2 of arXiv 2302.06675, written out for one tensor."""
    torch.manual_seed(0)
    parameter = nn.Parameter(torch.randn(5, 3))
    expected, momentum = parameter.detach().clone(), torch.zeros(5, 3)
    optimizer = Lion([parameter], lr=0.01, betas=(0.9, 0.99), weight_decay=0.5)
    for _ in range(4):
        gradient = torch.randn(5, 3)
        parameter.grad = gradient
        optimizer.step()
        update = (0.9 * momentum + 0.1 * gradient).sign()
        expected = expected - 0.01 * (update + 0.5 * expected)
        momentum = 0.99 * momentum + 0.01 * gradient
    torch.testing.assert_close(parameter.detach(), expected)


def test_the_configuration_chooses_the_optimizer(model):
    lion = make_optimizer(model, LionConfig("lion", 1e-4, 0.9, 0.99, 1.0), fused=False)
    assert isinstance(lion, Lion)
    adamw = make_optimizer(model, compose().config.optimizer, fused=False)
    assert isinstance(adamw, torch.optim.AdamW)
    assert adamw.param_groups[0]["betas"] == (0.9, 0.95)
