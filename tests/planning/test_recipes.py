"""The recipes for pretrained models: each composes, fits its machine, and has the memory that the page says."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from skytrain.cli.main import app
from skytrain.config import compose, total_tokens
from skytrain.planning import decoder_size, job_of, usable_bytes
from skytrain.planning.host import offloaded_bytes
from skytrain.planning.memory import rank_memory, training_state
from skytrain.planning.mesh import requested_mesh
from skytrain.tuning import Rung, combined_law

ROOT = Path(__file__).parents[2]
MODELS = ("llama-3.1-8b", "gemma-2-9b", "solar-10.7b", "exaone-3.5-7.8b", "llama-2-13b")
GPU_MIB = {"p4d": 40960, "p4de": 81920}


@pytest.mark.parametrize("machine", GPU_MIB)
@pytest.mark.parametrize("model", MODELS)
def test_a_recipe_fits_its_machine_with_the_memory_that_the_page_says(model: str, machine: str) -> None:
    recipe = f"{model}-{machine}"
    config = compose([f"recipe={recipe}"]).config
    trainer, mesh = config.trainer, requested_mesh(config.parallel, 8, 1)
    assert config.model.name == model and mesh.offload == (machine == "p4d") and mesh.zero == 3
    accumulation = trainer.batch_tokens // (8 * trainer.micro_sequences * trainer.sequence_length)
    memory = rank_memory(replace(job_of(config), accumulation=accumulation), mesh).total
    assert memory < usable_bytes(GPU_MIB[machine])
    page = (ROOT / "docs" / "continue-pretraining.md").read_text()
    row = next(line for line in page.splitlines() if line.startswith(f"| `recipe={recipe}` |"))
    assert f"| {memory / 1e9:.1f} of " in row and config.parallel.name in row


@pytest.mark.parametrize("size", ["350m", "1b"])
def test_the_rates_of_modern_recipes_are_those_of_the_measured_one_moved_by_the_law(size: str) -> None:
    measured, moved = (compose([f"recipe=modern-{name}"]).config for name in ("124m", size))
    here, there = (
        Rung(
            name=config.model.name,
            parameters=decoder_size(config.model).block_matrices,
            tokens=float(total_tokens(config)),
            batch_tokens=config.trainer.batch_tokens,
            usd=0.0,
        )
        for config in (measured, moved)
    )
    law = combined_law(there)
    factor = math.exp(law(there) - law(here))
    assert moved.optimizer.lr == pytest.approx(measured.optimizer.lr * factor, rel=0.02)
    assert moved.optimizer.rates()["embedding"] == pytest.approx(
        measured.optimizer.rates()["embedding"] * factor, rel=0.02
    )
    assert total_tokens(moved) == pytest.approx(20 * decoder_size(moved.model).parameters, rel=0.01)


def test_a_recipe_is_planned_in_dollars(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    words = ["plan", "recipe=llama-3.1-8b-p4d", "--instance", "p4d.24xlarge", "--nodes", "1", "--json"]
    done = CliRunner().invoke(app, words, catch_exceptions=False)
    offers = json.loads(done.stdout)["offers"]
    assert {offer["mesh"] for offer in offers} == {"deepspeed-zero3-offload(shard=8)"}
    assert any(offer["usd"] and offer["usd"][1] > 0 for offer in offers)


@pytest.mark.slow
@pytest.mark.parametrize("model", MODELS)
def test_the_model_states_of_a_recipe_are_those_of_deepspeeds_own_estimator(model: str) -> None:
    """On 8 GPUs, with and without offloading; DeepSpeed adds the largest layer, which a plan has among its buffers."""
    from deepspeed.runtime.zero.stage3 import estimate_zero3_model_states_mem_needs as estimate

    for machine, mode, offload in (("p4d", None, True), ("p4d", "parallel=deepspeed-zero3", False)):
        config = compose([f"recipe={model}-{machine}", *([mode] if mode else [])]).config
        job, mesh = job_of(config), requested_mesh(config.parallel, 8, 1)
        assert (mesh.deepspeed, mesh.offload) == (True, offload)
        size = decoder_size(config.model)
        layer = max(size.block_matrices // config.model.layers, 1)
        host, gpu, largest = estimate(
            size.parameters, layer, 8, 1, cpu_offload=offload, cpu_offload_params=offload, additional_buffer_factor=1.0
        )
        state = training_state(job, mesh, size.parameters)
        assert state.parameters + state.gradients + state.optimizer == pytest.approx(gpu - largest, abs=8)
        if offload:
            assert offloaded_bytes(job, mesh) * size.parameters == pytest.approx(host)
