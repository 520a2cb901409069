from __future__ import annotations

import copy

import lightning.pytorch as pl
import pytest
import torch
from torch import nn

from skytrain.config import ConfigError, compose
from skytrain.models import build_model
from skytrain.training import CausalLM, make_optimizer
from skytrain.training.master_weights import MasterWeights
from skytrain.training.step import Optimization, may_fuse
from tests.support.tiny import ONE_LAYER


def steps(parameter: nn.Parameter, optimizer: torch.optim.Optimizer, count: int) -> None:
    for _ in range(count):
        parameter.grad = torch.ones_like(parameter)
        optimizer.step()


def test_updates_below_a_weights_last_bit_add_up():
    plain, mastered = (nn.Parameter(torch.ones(4, dtype=torch.bfloat16)) for _ in range(2))
    steps(plain, torch.optim.SGD([plain], lr=1e-3), 100)
    steps(mastered, MasterWeights(torch.optim.SGD([mastered], lr=1e-3)), 100)
    assert torch.equal(plain, torch.ones_like(plain))
    torch.testing.assert_close(mastered.float(), torch.full((4,), 0.9), atol=4e-3, rtol=0)


@pytest.mark.parametrize("name", ["adamw", "lion", "muon"])
def test_the_copies_take_the_steps_of_a_float32_model(name):
    config = compose([*ONE_LAYER, f"optimizer={name}"]).config
    low = build_model(config.model, seed=0).to(torch.bfloat16)
    high = copy.deepcopy(low).float()
    mastered = MasterWeights(make_optimizer(low, config.optimizer, fused=False))
    plain = make_optimizer(high, config.optimizer, fused=False)
    for seed in range(3):
        generator = torch.Generator().manual_seed(seed)
        for one, other in zip(low.parameters(), high.parameters(), strict=True):
            one.grad = torch.randn(one.shape, generator=generator).to(torch.bfloat16)
            other.grad = one.grad.float()
        mastered.step()
        plain.step()
    assert all(torch.equal(a, b.to(torch.bfloat16)) for a, b in zip(low.parameters(), high.parameters(), strict=True))


@pytest.mark.parametrize("name", ["adamw", "muon"])
def test_the_copies_survive_a_checkpoint(name):
    config = compose([*ONE_LAYER, f"optimizer={name}"]).config
    first = build_model(config.model, seed=0).to(torch.bfloat16)
    optimizer = MasterWeights(make_optimizer(first, config.optimizer, fused=False))

    def step(model: nn.Module, optimizer: torch.optim.Optimizer, seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        for parameter in model.parameters():
            parameter.grad = torch.randn(parameter.shape, generator=generator).to(torch.bfloat16)
        optimizer.step()

    step(first, optimizer, 0)
    second = copy.deepcopy(first)
    resumed = MasterWeights(make_optimizer(second, config.optimizer, fused=False))
    resumed.load_state_dict(copy.deepcopy(optimizer.state_dict()))  # torch keeps the tensors it is given
    for seed in (1, 2):
        step(first, optimizer, seed)
        step(second, resumed, seed)
    assert all(torch.equal(a, b) for a, b in zip(first.parameters(), second.parameters(), strict=True))


@pytest.mark.parametrize(
    ("precision", "kind"), [("bf16-true", torch.bfloat16), ("bf16-mixed", torch.float32), ("32-true", torch.float32)]
)
def test_each_precision_trains(precision, kind):
    config = compose([*ONE_LAYER, "trainer.steps=30", "optimizer.lr=1e-2", f"trainer.precision={precision}"]).config
    model = build_model(config.model, seed=0)
    module = CausalLM(model, Optimization(config.optimizer, config.lr_schedule, 30, 1.0))
    batch = torch.randint(0, 250, (1, 2, 9), generator=torch.Generator().manual_seed(0)).expand(30, 2, 9)
    trainer = pl.Trainer(
        accelerator="cpu", precision=precision, max_steps=30, logger=False, enable_checkpointing=False,
        enable_progress_bar=False, enable_model_summary=False,
    )  # fmt: skip
    trainer.fit(module, torch.utils.data.DataLoader(batch, batch_size=None))
    assert {parameter.dtype for parameter in model.parameters()} == {kind}
    with torch.no_grad():
        assert model.float().loss(batch[0, :, :-1], batch[0, :, 1:]) < 2.0


def test_precisions_that_a_mesh_does_not_have_are_refused():
    with pytest.raises(ConfigError, match=r"trainer.precision: 'bf16-true' is not for parallel=fsdp"):
        compose(["parallel=fsdp", "trainer.precision=bf16-true"])


def test_gradients_are_unscaled_before_they_are_clipped():
    assert may_fuse("cuda", "bf16-mixed") and not may_fuse("cuda", "16-mixed") and not may_fuse("cpu", "32-true")
