"""What is planned is what `train` would run: every preset, and every setting that changes memory or time."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from typing import get_args, get_type_hints

import pytest

from skytrain.config import ParallelConfig, compose, resolve_mesh
from skytrain.planning import Placement, PlanRequest, find_gpu, find_offers
from skytrain.planning.catalog import packaged_catalog
from skytrain.planning.memory import in_flight
from skytrain.planning.offers import place
from skytrain.planning.plan_making import train_overrides
from skytrain.planning.search import NoPlacement
from skytrain.targets import compose_plan, planned_workload

CATALOG = packaged_catalog()
PRESETS = [name for name in get_args(get_type_hints(ParallelConfig)["name"]) if name not in ("auto", "single")]
MODEL = ["model=gpt2-124m", "trainer.steps=4725", "trainer.precision=bf16-mixed"]


@lru_cache
def placed(
    words: tuple[str, ...], mesh: str | None = None, instance: str = "p4d.24xlarge", nodes: int = 1
) -> Placement | NoPlacement:
    composed, open_mesh = compose_plan([*MODEL, *words], [], mesh)
    return place(planned_workload(composed, open_mesh), CATALOG.instance(instance), nodes)


def found(*words: str, mesh: str | None = None, instance: str = "p4d.24xlarge", nodes: int = 1) -> Placement:
    placement = placed(words, mesh, instance, nodes)
    assert isinstance(placement, Placement), placement
    return placement


def refused(*words: str, instance: str = "p4d.24xlarge") -> str:
    placement = placed(words, None, instance)
    assert isinstance(placement, NoPlacement)
    return placement.reason


def with_experts(preset: str) -> tuple[str, ...]:
    """A model with experts for a preset that divides them."""
    return ("model=mixtral-tiny",) if "ep-" in preset else ()


@pytest.mark.parametrize("preset", PRESETS)
def test_a_preset_is_planned_as_train_forms_it_and_as_the_mesh_option_has_it(preset: str) -> None:
    nodes = 2
    sizes = ("model.heads=16", "model.width=1024", "model.layers=16")  # which divide among 16
    words = (f"parallel={preset}", *with_experts(preset), *sizes)
    planned = found(*words, nodes=nodes)
    assert planned == found(*words[1:], mesh=preset, nodes=nodes)
    micro_batch = f"trainer.micro_batch={planned.job.micro_batch}"
    config = compose([*MODEL, *words, micro_batch]).config
    assert planned.mesh == resolve_mesh(config, 8 * nodes, nodes)
    assert planned.mesh.preset == preset


@pytest.mark.parametrize("preset", [*PRESETS, "single"])
def test_the_words_of_a_plan_are_what_train_accepts_and_forms(preset: str) -> None:
    instance = "p5.4xlarge" if preset == "single" else "g5.12xlarge"
    model = [*MODEL, *with_experts(preset)]
    composed, open_mesh = compose_plan([*model, f"parallel={preset}"], [], None)
    assert not open_mesh
    workload = planned_workload(composed, open_mesh)
    offer = find_offers(workload, CATALOG, PlanRequest(instance=instance, nodes=1, market="spot"))[0]
    assert offer.placement is not None
    config = compose([*model, *train_overrides(offer)]).config
    assert resolve_mesh(config, offer.gpus).gpus == offer.gpus and config.parallel.name == preset


def test_zero_3_is_not_planned_as_copies() -> None:
    ddp, zero3 = found("parallel=ddp"), found("parallel=deepspeed-zero3")
    assert zero3.memory.optimizer < ddp.memory.optimizer / 4


def test_each_pipeline_schedule_has_its_own_bubble_and_memory() -> None:
    mesh = ("parallel=pp-fsdp", "parallel.pipeline=4", "trainer.micro_batch=8", "trainer.activation_checkpointing=none")
    by = {name: found(*mesh, f"parallel.schedule={name}") for name in ("gpipe", "1f1b", "interleaved-1f1b", "zbv")}
    bubbles = [by[name].prediction.step.bubble for name in ("1f1b", "interleaved-1f1b", "zbv")]
    assert bubbles == sorted(bubbles, reverse=True) and len(set(bubbles)) == 3
    held = {name: in_flight(placement.job, placement.mesh) for name, placement in by.items()}
    assert held["gpipe"] > held["interleaved-1f1b"] > held["1f1b"] == held["zbv"]


def test_fp8_is_faster_where_it_runs_and_refused_where_train_refuses_it() -> None:
    wide = ("model=llama-3.2-1b", "tokenizer.vocab_size=257", "trainer.compile=true", "trainer.fused=off")
    plain, fp8 = (found(*wide, f"trainer.fp8={how}", instance="p5.4xlarge") for how in ("off", "tensorwise"))
    assert fp8.prediction.step.products < 0.8 * plain.prediction.step.products
    assert "does not multiply fp8" in refused(*wide, "trainer.fp8=tensorwise", instance="g5.xlarge")
    assert "one GPU" in refused(*wide, "trainer.fp8=tensorwise", instance="p5.48xlarge")


def test_recomputation_that_is_asked_for_is_planned() -> None:
    small = ("trainer.micro_batch=16", "trainer.fused=off", "parallel=ddp")
    none, selective, full = (
        found(*small, f"trainer.activation_checkpointing={how}") for how in ("none", "selective", "full")
    )
    assert full.memory.activations < selective.memory.activations < none.memory.activations
    assert none.prediction.seconds < selective.prediction.seconds < full.prediction.seconds


@pytest.mark.parametrize(
    "words",
    [
        ("optimizer=muon", "parallel=ddp"),
        ("optimizer=lion", "parallel=ddp"),
        ("parallel=fsdp", "parallel.cpu_offload=true"),
        ("parallel=fsdp", "parallel.reduce_once=false", "trainer.micro_batch=8"),
        ("parallel=deepspeed-zero1", "parallel.cpu_offload=true"),
        ("parallel=pp", "parallel.pipeline=8", "model.layers=16", "parallel.pipeline_micro_batches=8"),
        ("parallel=ddp", "trainer.fused=off"),
        ("parallel=ddp", "trainer.compile=true", "trainer.fused=off"),
        ("parallel=ddp", "trainer.precision=32-true"),
        ("parallel=ddp", "trainer.loss_chunk_tokens=2048", "trainer.fused=off"),
        ("parallel=ddp", "trainer.micro_batch=2"),
    ],
    ids=" ".join,
)
def test_a_setting_that_changes_memory_or_time_changes_the_plan(words: tuple[str, ...]) -> None:
    kept = [word for word in words if word.startswith(("parallel=", "parallel.pipeline=", "model."))]
    plain, changed = found(*kept), found(*words)
    assert (plain.memory, plain.prediction.seconds) != (changed.memory, changed.prediction.seconds)


def test_cards_of_one_chip_generation_reach_the_same_part_of_their_peak() -> None:
    h100, h200 = find_gpu("h100"), find_gpu("h200")
    assert h100 and h200 and h100.generation is h200.generation and h100.gemm == h200.gemm
    same = replace(h200, name=h100.name, device_pattern=h100.device_pattern, source=h100.source)
    assert replace(same, memory_bytes_per_s=h100.memory_bytes_per_s) == h100


def test_a_run_planned_for_a_cpu_is_refused() -> None:
    with pytest.raises(Exception, match="GPUs"):
        compose_plan([*MODEL, "trainer.device=cpu"], [], None)
