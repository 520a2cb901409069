import pytest

from skytrain.config import ConfigError, advice, compose, resolve_mesh, step_batches
from skytrain.planning import Mesh

SMALL = (
    "model=gpt2-tiny",  # 4 layers, 4 heads
    "tokenizer=bytes",
    "trainer.sequence_length=32",
    "trainer.micro_batch=2",
    "trainer.batch_tokens=512",  # 16 sequences
)


def config(*overrides: str):
    return compose([*SMALL, *overrides]).config


def degrees(mesh: Mesh) -> tuple[int, int, int, int]:
    return mesh.pipeline, mesh.replicate, mesh.shard, mesh.tensor


@pytest.mark.parametrize(
    ("preset", "world_size", "expected"),
    [
        ("single", 1, (1, 1, 1, 1)),
        ("ddp", 4, (1, 4, 1, 1)),
        ("fsdp", 4, (1, 1, 4, 1)),
        ("hsdp", 8, (1, 2, 4, 1)),
        ("tp", 4, (1, 1, 1, 4)),
        ("tp-fsdp", 4, (1, 1, 2, 2)),
        ("pp", 4, (4, 1, 1, 1)),
        ("pp-fsdp", 4, (2, 1, 2, 1)),
        ("pp-tp-fsdp", 8, (2, 1, 2, 2)),
        ("fsdp", 1, (1, 1, 1, 1)),
        ("cp", 1, (1, 1, 1, 1)),
    ],
)
def test_a_preset_fills_the_processes_there_are(preset, world_size, expected):
    assert degrees(resolve_mesh(config(f"parallel={preset}"), world_size)) == expected


def test_degrees_can_be_said_without_a_preset_and_beside_one():
    assert resolve_mesh(config("parallel=cp", "parallel.shard=2"), 8) == Mesh(shard=2, context=4)
    assert degrees(resolve_mesh(config("parallel.tensor=2", "parallel.shard=-1"), 8)) == (1, 1, 4, 2)
    assert degrees(resolve_mesh(config("parallel=ddp", "parallel.tensor=2"), 4)) == (1, 2, 1, 2)


@pytest.mark.parametrize(
    ("overrides", "world_size", "words"),
    [
        (("parallel=single",), 2, ["is for 1 processes", "there are 2"]),
        (("parallel=tp-fsdp",), 3, ["shard", "tensor 2", "is for 2 processes", "there are 3"]),
        (("parallel=hsdp",), 1, ["replicate 2", "is for 2 processes", "there are 1"]),
        (("parallel=tp",), 3, ["model.heads, which is 4, does not divide among 3 ranks"]),
        (("parallel=tp", "model=llama-tiny", "model.max_length=64"), 4, ["model.kv_heads, which is 2", "4 ranks"]),
        (("parallel=pp",), 8, ["4 layers are fewer than 8 stages"]),
        (("parallel=pp", "parallel.schedule=zbv"), 4, ["4 layers are fewer than 8 stages (2 on each of 4 ranks)"]),
        (("parallel=pp", "trainer.micro_batch=16"), 2, ["1 micro-batches", "pipeline of 2", "at least 2"]),
        (("parallel=pp", "parallel.pipeline_micro_batches=3"), 2, ["3 does not divide the 8 micro-batches"]),
        (("parallel=fsdp",), 3, ["16 sequences a step", "3 data-parallel ranks x 2", "try trainer.batch_tokens=576"]),
        (("parallel=fsdp", "parallel.shard=-1", "parallel.tensor=-1"), 2, ["only one degree may be -1"]),
        (("parallel=fsdp", "parallel.shard=0"), 2, ["0 is not a degree"]),
        (("parallel=fsdp", "parallel.cpu_offload=true", "trainer.device=cpu"), 2, ["nothing to offload from"]),
    ],
)
def test_an_impossible_mesh_is_answered_with_the_numbers(overrides, world_size, words):
    with pytest.raises(ConfigError) as caught:
        resolve_mesh(config(*overrides), world_size)
    for word in words:
        assert word in str(caught.value)


def test_an_impossible_mesh_is_answered_with_the_nearest_possible_ones():
    with pytest.raises(ConfigError) as caught:
        resolve_mesh(config("parallel=tp"), 8)  # 4 heads
    assert caught.value.hint is not None
    first = caught.value.hint.split("possible here: ")[1].split("  or  ")[0]
    assert first == "parallel.pipeline=1 parallel.replicate=1 parallel.shard=2 parallel.context=1 parallel.tensor=4"
    assert degrees(resolve_mesh(config(*first.split()), 8)) == (1, 1, 2, 4)


@pytest.mark.parametrize("mesh", ["parallel=fsdp", "parallel.shard=2"])
def test_float16_is_refused_on_a_mesh(mesh):
    with pytest.raises(ConfigError, match=r"'16-mixed' is not for parallel=fsdp[\s\S]*trainer\.precision=bf16-mixed"):
        resolve_mesh(config(mesh, "trainer.precision=16-mixed"), 2)


def test_tensor_ranks_on_several_nodes_are_advised_against():
    assert advice(Mesh(tensor=4), ranks_per_node=4) == []
    (line,) = advice(Mesh(tensor=8), ranks_per_node=4)
    assert "parallel.tensor=8 crosses nodes of 4" in line and "parallel.tensor=4 parallel.shard=-1" in line


def test_a_pipeline_takes_all_micro_batches_of_a_step_unless_told_otherwise():
    whole, some = config("parallel=pp"), config("parallel=pp", "parallel.pipeline_micro_batches=4")
    assert step_batches(whole, resolve_mesh(whole, 2)) == (8, 1)
    assert step_batches(some, resolve_mesh(some, 2)) == (4, 2)
    sharded = config("parallel=fsdp")
    assert step_batches(sharded, resolve_mesh(sharded, 2)) == (1, 4)
