"""An optimizer of the user's own file trains on one device and on meshes, and resumes."""

from pathlib import Path

import pytest
from benchmarks.parallel.processes import run_ranks

from skytrain.pipelines.prepare import prepare
from skytrain.runs import Silent
from tests.parallel import workers
from tests.support.tiny import tiny_config

SIGN_DESCENT = """
import torch


class SignDescent(torch.optim.Optimizer):
    def __init__(self, params, lr, momentum, weight_decay=0.0):
        super().__init__(params, {"lr": lr, "momentum": momentum, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure=None):
        loss = torch.enable_grad()(closure)() if closure is not None else None
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is None:
                    continue
                mean = self.state[parameter].setdefault("mean", torch.zeros_like(parameter))
                mean.lerp_(parameter.grad, 1 - group["momentum"])
                parameter.mul_(1 - group["lr"] * group["weight_decay"]).add_(mean.sign(), alpha=-group["lr"])
        return loss
"""
OPTIONS = (
    "optimizer=custom",
    "optimizer.target=my_optimizer.SignDescent",
    "optimizer.lr=2e-3",
    "optimizer.momentum=0.9",
    "optimizer.weight_decay=0.1",
    "trainer.micro_batch=2",
    "trainer.device=cpu",
    "trainer.validate_every=null",
)


@pytest.mark.slow
def test_a_class_of_the_users_own_trains_and_resumes_alone_and_on_meshes(tmp_path: Path, monkeypatch) -> None:
    root = tmp_path / "store"
    (tmp_path / "my_optimizer.py").write_text(SIGN_DESCENT)
    monkeypatch.chdir(tmp_path)
    prepare(tiny_config(root), Silent())
    alone, resumed = workers.stops_and_whole_runs(root, ["single"], OPTIONS)["single"]
    assert resumed == alone
    assert alone[-1] < alone[0] - 0.1
    on_meshes = run_ranks(2, workers.stops_and_whole_runs, root, ["ddp", "fsdp"], OPTIONS)[0]
    for whole, parts in on_meshes.values():
        assert parts == whole
        assert whole == pytest.approx(alone, abs=2e-2)  # the sign of a gradient near zero depends on the order of a sum
