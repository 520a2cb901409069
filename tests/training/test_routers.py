"""What the trainer makes of routers' loads: biases that balance them, metrics, and a line about a router that collapsed."""

from __future__ import annotations

import math

import pytest
import torch

from skytrain.config import compose
from skytrain.models import build_model
from skytrain.training.optimizers.muon import MatrixMuon
from skytrain.training.routers import RouterLoads

SETTINGS = (
    "model=mixtral-tiny",
    "tokenizer=bytes",
    "model.layers=2",
    "model.width=32",
    "model.experts.count=4",
    "model.experts.per_token=1",
    "model.experts.width=16",
    "model.experts.bias=true",
    "model.experts.bias_rate=0.25",
)


@pytest.fixture
def model() -> torch.nn.Module:
    return build_model(compose([*SETTINGS]).config.model, seed=0).train()


def give_loads(model: torch.nn.Module, *loads: list[int], lost: int = 0) -> RouterLoads:
    found = RouterLoads(model)
    for mixture, load in zip(found.mixtures.values(), loads, strict=True):
        mixture.router.load_e = torch.tensor(load)
        mixture.experts.served = torch.tensor(sum(load) - lost)
    found.collect()
    return found


def test_a_bias_falls_where_an_expert_has_more_than_the_mean_load_and_rises_where_it_has_less(model):
    loads = give_loads(model, [10, 2, 4, 0], [3, 3, 3, 3])
    assert loads.moves_biases
    loads.move_biases()
    first, second = (mixture.router.load_bias.tolist() for mixture in loads.mixtures.values())
    assert first == [-0.25, 0.25, 0.0, 0.25] and second == [0.0] * 4


def test_metrics_are_those_of_each_layer_and_of_the_worst(model):
    metrics = give_loads(model, [6, 2, 0, 0], [3, 3, 3, 3]).metrics()
    entropy = -(0.75 * math.log(0.75) + 0.25 * math.log(0.25)) / math.log(4)
    assert metrics["moe/load_max"] == metrics["moe/load_max/0"] == 3.0
    assert metrics["moe/entropy"] == metrics["moe/entropy/0"] == pytest.approx(entropy)
    assert metrics["moe/load_max/1"] == 1.0 and metrics["moe/entropy/1"] == pytest.approx(1.0)


def test_a_router_that_uses_hardly_more_than_one_tokens_experts_is_named(model):
    loads = give_loads(model, [5, 5, 5, 5], [100, 1, 1, 1])
    said = loads.collapsed(loads.metrics())
    assert said is not None and said.startswith("layer 1: the router uses 1.2 of 4 experts")
    even = give_loads(model, [5, 5, 5, 5], [40, 10, 10, 10])
    assert even.collapsed(even.metrics()) is None


def test_an_expert_that_nearly_every_token_goes_to_is_named():
    wide = [*SETTINGS, "model.experts.count=16", "model.experts.per_token=4"]
    loads = give_loads(build_model(compose(wide).config.model, seed=0), [40] * 16, [150, *[30] * 15])
    said = loads.collapsed(loads.metrics())
    assert said is not None and said.startswith("layer 1: one of 16 experts gets 100% of the tokens")


def test_rows_that_no_expert_computed_count_as_dropped(model):
    assert give_loads(model, [6, 2, 0, 0], [3, 3, 3, 3]).metrics()["moe/dropped"] == 0.0
    dropped = give_loads(model, [6, 2, 0, 0], [3, 3, 3, 7], lost=2).metrics()
    assert dropped["moe/dropped"] == dropped["moe/dropped/0"] == 0.25 and dropped["moe/dropped/1"] == 0.125


def test_a_step_of_training_drops_nothing(model):
    model(torch.randint(0, 256, (2, 16)))
    loads = RouterLoads(model)
    loads.collect()
    metrics = loads.metrics()
    assert metrics["moe/dropped"] == 0.0 and metrics["moe/load_max"] >= 1.0


def test_a_model_without_experts_has_no_loads():
    dense = build_model(compose(["model=gpt2-tiny", "tokenizer=bytes"]).config.model, seed=0)
    assert not RouterLoads(dense)


def test_muon_moves_each_experts_matrix_as_a_matrix_of_its_own():
    value, gradient = torch.randn(2, 3, 8, 6, generator=torch.Generator().manual_seed(0))
    together = torch.nn.Parameter(value.clone())
    together.grad = gradient.clone()
    apart = [torch.nn.Parameter(each.clone()) for each in value]
    for parameter, each in zip(apart, gradient, strict=True):
        parameter.grad = each.clone()
    for parameters in ([together], apart):
        MatrixMuon(parameters, lr=0.1, momentum=0.9, momentum_start=0.9, momentum_warmup=0, row_beta=None).step()
    assert torch.equal(together.detach(), torch.stack([each.detach() for each in apart]))
    assert not torch.equal(together.detach(), value)
