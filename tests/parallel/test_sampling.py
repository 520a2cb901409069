"""Samples in the training loop, on meshes where no rank holds the whole model."""

from benchmarks.parallel.processes import run_ranks

from skytrain.pipelines.prepare import prepare
from skytrain.runs import Silent
from tests.parallel.workers import samples
from tests.support.tiny import tiny_config


def test_every_mesh_samples_the_text_that_one_process_does(tmp_path):
    prepare(tiny_config(tmp_path), Silent())
    expected = samples(str(tmp_path), ["single"])["single"]
    first, other = run_ranks(2, samples, str(tmp_path), ["fsdp", "tp", "pp"])
    assert len(expected) == 1 and first == dict.fromkeys(["fsdp", "tp", "pp"], expected)
    assert other == {"fsdp": [], "tp": [], "pp": []}  # rank 0 alone tells
