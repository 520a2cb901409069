"""What a plan says of a checkpoint's size, compared with checkpoints that training writes."""

import math

import pytest
import torch

from skytrain.checkpoints import find_commit, read_manifest, step_key
from skytrain.config.schema import OPTIMIZERS
from skytrain.pipelines.prepare import prepare
from skytrain.pipelines.train import train
from skytrain.planning import work_of
from skytrain.runs import Silent
from skytrain.storage import open_store
from tests.support.tiny import tiny_config

NAMES = [declared.__name__.removesuffix("Config").removesuffix("Optimizer").lower() for declared in OPTIMIZERS]
OTHERS = {
    "weights in bfloat16": ["trainer.precision=bf16-true"],
    "a head of its own": ["model.tied_head=false", "optimizer=muon"],
}
CASES = {name: [f"optimizer={name}"] for name in NAMES} | OTHERS
CUSTOM = ["optimizer.target=torch.optim.NAdam", "optimizer.lr=1e-3"]
SMALL_BYTES = 32 * 1024  # random states, and a few numbers for each tensor


@pytest.mark.parametrize("case", CASES)
def test_a_plan_counts_the_bytes_that_a_checkpoint_has(case, tmp_path):
    words = [*CASES[case], *(CUSTOM if case == "custom" else [])]
    config = tiny_config(
        tmp_path, "run=saved", "trainer.steps=1", "lr_schedule.warmup_steps=1", "trainer.validate_every=null", *words
    )
    prepare(config, Silent())
    train(config, Silent())
    store = open_store(config.store)
    _, manifest = read_manifest(store, find_commit(store, step_key("saved", 1)))
    sizes = {
        name: math.prod(tensor.shape) * getattr(torch, tensor.dtype).itemsize
        for name, tensor in manifest.tensors.items()
    }
    of_parameters = sum(
        size for name, size in sizes.items() if math.prod(manifest.tensors[name].shape) > 1 and "random/" not in name
    )
    assert work_of(config).checkpoint_bytes == pytest.approx(of_parameters, rel=1e-12)
    assert sum(sizes.values()) - of_parameters < SMALL_BYTES
