"""A block that returns an auxiliary loss trains on every mesh as on one process."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
import torch
from benchmarks.parallel.cases import DECODER, LOSS, MODELS, SIZE, Case
from benchmarks.parallel.equivalence import GRADIENT, Outcome, train
from benchmarks.parallel.processes import run_ranks
from torch import Tensor, nn

from skytrain.models import Decoder, decoder


class RoutedBlock(decoder.Block):
    """A toy router: a linear layer over each token, whose squared logits are an auxiliary loss."""

    has_auxiliary_loss = True

    def __init__(self, config: Any, layer: int) -> None:
        super().__init__(config, layer)
        self.router = nn.Linear(config.width, 3)

    def forward(self, x_btd: Tensor, *rest: Any) -> tuple[Tensor, Tensor]:
        found = super().forward(x_btd, *rest)
        logits = self.router(found)
        return found + 0.1 * logits.mean(-1, keepdim=True), 0.5 * logits.float().square().mean()


def case(name: str, *overrides: str, world_size: int = 2, documents: bool = False, slow: bool = False) -> Case:
    return Case(name, world_size, overrides, model="llama", documents=documents, slow=slow)


CASES = [
    case("ddp", "parallel=ddp"),
    case("fsdp, recomputed", "parallel=fsdp", "trainer.activation_checkpointing=full"),
    case("fsdp, documents", "parallel=fsdp", documents=True),
    case("tp", "parallel=tp"),
    case("pp", "parallel=pp"),
    case("pp, zbv, documents", "parallel=pp", "parallel.schedule=zbv", documents=True),
    case("cp", "parallel=cp"),
    case("deepspeed", "parallel=deepspeed-zero3"),
    case("fsdp, compiled", "parallel=fsdp", "trainer.compile=true", slow=True),
    case("deepspeed-zero1, recomputed", "parallel=deepspeed-zero1", "trainer.activation_checkpointing=full", slow=True),
    case("hsdp", "parallel=hsdp", world_size=4, slow=True),
    case("pp x tp", "parallel=pp", "parallel.pipeline=2", "parallel.tensor=2", world_size=4, slow=True),
]


def train_routed(chosen: Case) -> Outcome:
    plain, plan = decoder.Block, Decoder.tensor_plan
    decoder.Block = RoutedBlock  # type: ignore[misc]
    Decoder.tensor_plan = {**plan, "blocks.*.router": "sequence"}
    try:
        return train(chosen, evaluations="none")
    finally:
        decoder.Block = plain  # type: ignore[misc]
        Decoder.tensor_plan = plan


def _work(chosen: list[Case]) -> dict[str, Outcome]:
    return {each.name: train_routed(each) for each in chosen}


@cache
def alone(documents: bool) -> Outcome:
    return train_routed(case("alone", "parallel=single", world_size=1, documents=documents))


@cache
def outcomes(world_size: int, slow: bool) -> list[dict[str, Outcome]]:
    return run_ranks(world_size, _work, [each for each in CASES if (each.world_size, each.slow) == (world_size, slow)])


def test_the_auxiliary_loss_is_part_of_what_is_trained():
    single = alone(documents=False)
    routers = [gradient for name, gradient in single.gradients.items() if "router" in name]
    assert len(routers) == 8 and all(gradient.abs().max() > 0 for gradient in routers)


@pytest.mark.parametrize(
    "chosen",
    [pytest.param(each, id=each.name, marks=[pytest.mark.slow] if each.slow else []) for each in CASES],
)
def test_a_block_with_an_auxiliary_loss_trains_on_every_mesh_as_on_one_process(chosen: Case):
    single = alone(chosen.documents)
    for rank in outcomes(chosen.world_size, chosen.slow):
        mine = rank[chosen.name]
        losses = [abs(a - b) for a, b in zip(mine.losses, single.losses, strict=True)]
        assert max(losses) <= LOSS and len(losses) > 1
        for name, gradient in mine.gradients.items():
            assert (gradient - single.gradients[name]).abs().max() <= GRADIENT, name


def test_a_model_without_one_returns_plain_tensors():
    from skytrain.config import compose
    from skytrain.models import build_model

    model = build_model(compose([*MODELS["llama"], *DECODER, *SIZE]).config.model, seed=0)
    tokens = torch.zeros(1, 4, dtype=torch.long)
    assert isinstance(model(tokens), Tensor) and isinstance(model.loss(tokens, tokens), Tensor)
