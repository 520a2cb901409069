"""The fused path block by block under FSDP, against the plain decoder under FSDP."""

from __future__ import annotations

from typing import Any

import pytest
from benchmarks.parallel.processes import run_ranks

from tests.parallel.workers import Watch, fit

MODERN = (
    "model=qwen3-0.6b",
    "model.layers=2",
    "model.width=32",
    "model.heads=4",
    "model.kv_heads=2",
    "model.head_size=16",
    "model.mlp_width=48",
    "model.vocab_size=257",
)


def compare(precision: str, model: tuple[str, ...] = ()) -> tuple[float, float]:
    """On each rank: the largest difference of the losses, and of the gradients."""
    import skytrain.training.factory as factory
    from skytrain.models import Kernels, lm_loss
    from skytrain.training.losses import LossPath

    overrides = ("parallel=fsdp", "trainer.micro_batch=2", f"trainer.precision={precision}", *model)
    plain = _gradients(overrides)
    factory.choose_loss = lambda *_: LossPath("fused", "fused", lm_loss, Kernels())  # a CPU is not offered this path
    fused = _gradients(overrides)
    assert [name for name, _ in plain[1]] == [name for name, _ in fused[1]]
    losses = max(abs(a - b) for a, b in zip(plain[0], fused[0], strict=True))
    gradients = max(float((a - b).abs().max()) for (_, a), (_, b) in zip(plain[1], fused[1], strict=True))
    return losses, gradients


def _gradients(overrides: tuple[str, ...]) -> tuple[list[float], list[Any]]:
    losses: list[float] = []
    gradients: list[Any] = []

    def stepped(module: Any) -> None:
        losses.append(float(module._losses[-1]))
        if not gradients:  # they are there after the last micro-batch of the first step
            gradients.extend(
                (name, p.grad.to_local().clone()) for name, p in module.named_parameters() if p.grad is not None
            )

    fit(overrides, Watch(stepped=stepped))
    assert gradients
    return losses, gradients


@pytest.mark.parametrize("model", [(), pytest.param(MODERN, marks=pytest.mark.slow)], ids=["gpt2", "qwen3"])
def test_fused_blocks_train_under_fsdp_as_the_plain_decoder_does(model: tuple[str, ...]) -> None:
    for losses, gradients in run_ranks(2, compare, "32-true", model):
        assert losses < 5e-6
        assert gradients < 1e-6


@pytest.mark.slow
def test_fused_blocks_take_gathered_weights_in_bf16() -> None:
    for losses, gradients in run_ranks(2, compare, "bf16-mixed"):
        assert losses < 1e-2
        assert gradients < 1e-2
