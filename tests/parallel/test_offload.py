"""State in the machine's own memory. Without a GPU there is nothing to offload from."""

import pytest
import torch

from skytrain.parallel import Ranks
from tests.parallel import workers


def losses(offload: bool) -> list[float]:
    seen: list[float] = []
    overrides = ("parallel=fsdp", "trainer.device=cuda", "trainer.micro_batch=8", f"parallel.cpu_offload={offload}")
    module = workers.fit(overrides, workers.Watch(stepped=lambda module: seen.append(float(module._losses[-1]))))
    held = {value.to_local().device.type for value in module.model.parameters()}  # type: ignore[attr-defined]
    assert held == ({"cpu"} if offload else {"cuda"})
    return seen


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_run_whose_state_is_in_the_machines_memory_trains_as_one_on_the_gpu():
    with Ranks().joined("cuda"):
        on_gpu, offloaded = losses(False), losses(True)
    assert offloaded == pytest.approx(on_gpu, abs=1e-5)
