"""What a mesh has blocks compute again, by the trainer's own setting."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from skytrain.config import compose
from skytrain.jobs import Ranks
from skytrain.models import Recompute, build_model
from skytrain.parallel import blocks_of
from skytrain.parallel.apply import recompute
from skytrain.training import make_module, plan_training
from skytrain.training.factory import make_strategy

TINY = [
    "model=gpt2-tiny",
    "tokenizer.vocab_size=257",
    "trainer.sequence_length=32",
    "trainer.micro_batch=2",
    "trainer.precision=32-true",
]


class Forwards(TorchDispatchMode):
    """Counts the ops that only a forward pass has."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: Counter[str] = Counter()

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.seen[function.overloadpacket.__name__] += 1
        return function(*args, **(kwargs or {}))


def computed_again(how: Recompute) -> tuple[int, int]:
    """(products, norms) of a tiny decoder's blocks that its backward pass computes."""
    model = build_model(compose(TINY).config.model, seed=0)
    recompute(blocks_of(model), how)
    loss = model(torch.zeros(2, 32, dtype=torch.long)).sum()
    with Forwards() as backward:
        loss.backward()
    return backward.seen["addmm"], backward.seen["native_layer_norm"]


def test_a_block_is_computed_again_whole_or_but_for_its_products_or_not_at_all() -> None:
    whole, part, none = (computed_again(how) for how in ("full", "selective", "none"))
    assert none == (0, 0)
    assert part[0] == 0 and part[1] > 0
    assert whole[0] > 0 and whole[1] == part[1]


@pytest.mark.parametrize("how", ["none", "selective", "full"])
def test_a_mesh_takes_the_trainers_setting_and_the_model_does_not_do_it_again(how: str) -> None:
    config = compose([*TINY, "parallel=fsdp", f"trainer.activation_checkpointing={how}", "trainer.device=cpu"]).config
    plan = plan_training(config, Ranks())
    model = build_model(config.model, seed=0)
    make_module(config, plan, model, lambda text: None)
    assert make_strategy(config, plan).settings.recompute == how
    assert model.recompute == "none"
