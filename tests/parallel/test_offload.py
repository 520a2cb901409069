"""State in the machine's own memory. Without a GPU there is nothing to offload from."""

from typing import Any

import pytest
import torch

from skytrain.jobs import Ranks
from tests.parallel import workers


def trained(offload: bool) -> tuple[list[float], set[str]]:
    """The losses, and where the weights were after each step: once training has ended Lightning takes all of them to the CPU."""
    losses: list[float] = []
    held: set[str] = set()

    def look(module: Any) -> None:
        losses.append(float(module._losses[-1]))
        held.update(weight.to_local().device.type for weight in module.model.parameters())

    overrides = ("parallel=fsdp", "trainer.device=cuda", "trainer.micro_batch=8", f"parallel.cpu_offload={offload}")
    workers.fit(overrides, workers.Watch(stepped=look))
    return losses, held


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_run_whose_state_is_in_the_machines_memory_trains_as_one_on_the_gpu():
    with Ranks().joined("cuda"):
        (on_gpu, on_gpu_held), (offloaded, offloaded_held) = trained(False), trained(True)
    assert (on_gpu_held, offloaded_held) == ({"cuda"}, {"cpu"})
    assert offloaded == pytest.approx(on_gpu, abs=1e-5)
