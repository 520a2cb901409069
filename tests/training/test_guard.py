from __future__ import annotations

import lightning.pytorch as pl
import pytest
import torch
from torch import nn

from skytrain.config import SkytrainError, compose
from skytrain.models import build_model
from skytrain.training import CausalLM
from skytrain.training.guard import Guard, make_guard
from skytrain.training.memory import apply_memory_settings
from skytrain.training.step import Optimization
from tests.support.tiny import ONE_LAYER

TINY = (*ONE_LAYER, "trainer.batch_tokens=16")


class Explodes(nn.Module):
    """A decoder whose loss is not a number in one step."""

    def __init__(self, at: int) -> None:
        super().__init__()
        self.inner = build_model(compose(list(TINY)).config.model, seed=0)
        self.config, self.at, self.calls = self.inner.config, at, 0

    def forward(self, tokens_bt: torch.Tensor) -> torch.Tensor:
        return self.inner(tokens_bt)

    def loss(self, tokens_bt: torch.Tensor, targets_bt: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        loss = self.inner.loss(tokens_bt, targets_bt)
        return loss * float("nan") if self.calls == self.at else loss


def flat(model: nn.Module) -> torch.Tensor:
    return torch.cat([p.detach().flatten().clone() for p in model.parameters()])


class Keep(pl.Callback):
    """The weights after each step; `ask` is called then."""

    def __init__(self, ask=lambda trainer, module: None) -> None:
        self.weights: list[torch.Tensor] = []
        self.ask = ask

    def on_train_batch_end(self, trainer, module, *_):
        self.weights.append(flat(module.model))
        if trainer.global_step == 2:
            self.ask(trainer, module)


def fit(model: nn.Module, guard: Guard | None, steps: int = 4, keep: Keep | None = None) -> list[torch.Tensor]:
    config = compose([*TINY, f"trainer.steps={steps}"]).config
    module = CausalLM(model, Optimization(config.optimizer, config.lr_schedule, steps, 1.0), guard=guard)
    keep = keep or Keep()
    batches = torch.randint(0, 250, (steps, 2, 9), generator=torch.Generator().manual_seed(0))
    trainer = pl.Trainer(
        accelerator="cpu", max_steps=steps, logger=False, enable_checkpointing=False, enable_progress_bar=False,
        enable_model_summary=False, callbacks=[keep],
    )  # fmt: skip
    trainer.fit(module, torch.utils.data.DataLoader(batches, batch_size=None))
    return keep.weights


def test_a_step_that_is_not_finite_is_skipped_whole():
    notes: list[str] = []
    weights = fit(Explodes(at=3), Guard("skip", None, notes.append))
    assert torch.equal(weights[2], weights[1])  # no step, no decay, no momentum
    assert not torch.equal(weights[3], weights[2]) and torch.isfinite(weights[3]).all()
    assert notes == ["step 3 | the loss is nan: update skipped"]


@pytest.mark.parametrize("fused", [False, True])  # fused, the step is checked while the next is computed
@pytest.mark.parametrize("at", [3, 4])  # 4: there is no next
def test_a_step_that_is_not_finite_stops_the_run_before_the_weights_change(monkeypatch, fused, at):
    monkeypatch.setattr("skytrain.training.step.may_fuse", lambda *_: fused)
    keep, model = Keep(), Explodes(at=at)
    with pytest.raises(SkytrainError, match=rf"step {at}: the loss is nan; the update was not made\n.*on_anomaly=skip"):
        fit(model, Guard("stop", None, lambda text: None), keep=keep)
    assert torch.equal(flat(model), keep.weights[at - 2])


def test_a_state_that_lacks_an_update_is_neither_logged_nor_saved(monkeypatch):
    monkeypatch.setattr("skytrain.training.step.may_fuse", lambda *_: True)
    for ask in (lambda trainer, module: module.take_loss(), lambda trainer, module: trainer.save_checkpoint("never")):
        with pytest.raises(SkytrainError, match="step 2: the loss is nan"):
            fit(Explodes(at=2), Guard("stop", None, lambda text: None), keep=Keep(ask))


def test_a_run_with_a_late_guard_trains_as_one_with_none(monkeypatch):
    monkeypatch.setattr("skytrain.training.step.may_fuse", lambda *_: True)
    guarded, plain = (fit(Explodes(at=0), guard) for guard in (Guard("stop", None, print), None))
    assert all(torch.equal(a, b) for a, b in zip(guarded, plain, strict=True))


def test_without_a_guard_the_weights_are_lost():
    assert torch.isnan(fit(Explodes(at=3), None)[-1]).any()


def test_a_spike_is_measured_by_the_steps_before_it():
    guard = Guard("skip", 6.0, lambda text: None)
    for step in range(40):
        assert not guard.rejects(3.0 + 0.1 * (step % 2), 1.0 + 0.2 * (step % 3), step)
    assert guard.rejects(9.0, 1.0, 40)
    assert guard.rejects(3.0, 50.0, 41)
    assert not guard.rejects(3.05, 1.1, 42)


def test_a_falling_loss_is_no_spike_and_neither_is_anything_early():
    guard = Guard("stop", 6.0, lambda text: None)
    assert not any(guard.rejects(11.0 * 0.9**step, 5.0 * 0.95**step, step) for step in range(100))
    assert not Guard("stop", 6.0, lambda text: None).rejects(1e9, 1e9, 0)


def test_a_run_that_only_skips_ends():
    guard = Guard("skip", None, lambda text: None)
    with pytest.raises(SkytrainError, match="20 updates in a row were skipped"):
        for step in range(30):
            guard.rejects(float("nan"), 1.0, step)


def test_float16_may_overflow_while_it_seeks_its_scale():
    guard = make_guard(compose(["trainer.precision=16-mixed"]).config.trainer, lambda text: None)
    assert guard is not None and not guard.rejects(3.0, float("inf"), 0)
    assert make_guard(compose(["trainer.on_anomaly=ignore"]).config.trainer, lambda text: None) is None


def test_memory_settings_reach_the_decoder():
    words = ["trainer.activation_checkpointing=selective", "trainer.loss_chunk_tokens=4", "trainer.z_loss=1e-4"]
    config = compose([*TINY, *words]).config
    model = build_model(config.model, seed=0)
    apply_memory_settings(model, config.trainer)
    assert (model.recompute, model.loss_settings.chunk_tokens, model.loss_settings.z_loss) == ("selective", 4, 1e-4)
