"""What each rank holds and sends: initial weights, memory, bytes, tied weights."""

from pathlib import Path

import pytest
import torch
from benchmarks.parallel.processes import run_ranks

from skytrain.config import compose
from skytrain.models import build_model, save_hf_folder
from skytrain.models.safetensors_io import SafetensorsFolder, TensorSpec, write_folder
from tests.parallel import workers

FSDP, ACCUMULATED = ("parallel=fsdp", "trainer.micro_batch=4"), ("parallel=fsdp", "trainer.micro_batch=1")
PIPELINE = ("parallel=pp", "trainer.micro_batch=2")
ZBV = ("parallel=pp", "parallel.schedule=zbv", "trainer.micro_batch=2")
TP = ("parallel=tp", "trainer.micro_batch=8")
MESHES = [FSDP, TP, PIPELINE]


@pytest.fixture(scope="module")
def model_bytes() -> dict[str, int]:
    """Of the tiny model's parameters: all of them, and of one block."""
    model = build_model(compose([*workers.SMALL]).config.model, seed=0)
    block = sum(p.numel() * 4 for p in model.blocks["0"].parameters())
    return {"all": sum(p.numel() * 4 for p in model.parameters()), "block": block}


@pytest.fixture(scope="module")
def llama_folder(tmp_path_factory) -> Path:
    """The configuration of a tiny Llama with a tied head, as transformers writes it."""
    from transformers import LlamaConfig

    folder = tmp_path_factory.mktemp("llama")
    LlamaConfig(
        architectures=["LlamaForCausalLM"],
        vocab_size=257,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=64,
        tie_word_embeddings=True,
    ).save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def weights(tmp_path_factory) -> Path:
    """The tiny model with other weights in bf16, as a Hugging Face folder in several files."""
    whole, parts = tmp_path_factory.mktemp("whole"), tmp_path_factory.mktemp("parts")
    save_hf_folder(build_model(compose([*workers.SMALL]).config.model, seed=11).bfloat16(), whole)
    one = SafetensorsFolder(whole)
    specs = [TensorSpec(name, torch.bfloat16, shape) for name, shape in one.shapes.items()]
    write_folder(parts, specs, (one.get(spec.name) for spec in specs), max_file_bytes=300_000)
    (parts / "config.json").write_bytes((whole / "config.json").read_bytes())
    assert len(list(parts.glob("*.safetensors"))) > 3
    return parts


@pytest.fixture(scope="module")
def on_two_ranks(llama_folder, weights) -> list:
    """All that two processes are asked for here, in one start."""
    return run_ranks(2, everything, llama_folder, weights)


def everything(llama_folder: Path, weights: Path) -> dict:
    return {
        "from_folder": workers.initial_differences(MESHES, f"model.weights={weights}"),
        "folder_memory": workers.memory((*FSDP, f"model.weights={weights}")),
        "hugging_face": workers.hugging_face_losses(llama_folder, [TP, FSDP]),
        "initial": workers.initial_differences(MESHES),
        "tied": workers.tied_weights([PIPELINE, ZBV]),
        "replicated": workers.replicated_after_dropout(),
        "memory": workers.memory(FSDP),
        "bytes": workers.bytes_sent(
            {"once": ACCUMULATED, "each": (*ACCUMULATED, "parallel.reduce_once=false"), "plain": FSDP}
        ),
    }


def test_every_mesh_starts_from_the_weights_that_one_process_would(on_two_ranks):
    for rank in on_two_ranks:
        assert set(rank["initial"].values()) == {0.0}


def test_every_mesh_reads_its_parts_of_a_folder_in_several_files(on_two_ranks, model_bytes):
    for rank in on_two_ranks:
        assert set(rank["from_folder"].values()) == {0.0} and len(rank["from_folder"]) == len(MESHES)
    check_memory([rank["folder_memory"] for rank in on_two_ranks], model_bytes)


def test_the_two_copies_of_a_tied_weight_stay_the_same_bit_for_bit(on_two_ranks):
    first, last = (rank["tied"][0] for rank in on_two_ranks)
    assert torch.equal(first["embedding.tokens.weight"], last["head.projection.weight"])
    assert list(first) == ["embedding.tokens.weight"] and list(last) == ["head.projection.weight"]
    both = on_two_ranks[0]["tied"][1]  # a V: the first rank holds both ends
    assert torch.equal(both["embedding.tokens.weight"], both["head.projection.weight"])


def test_dropout_under_tensor_parallelism_leaves_replicated_weights_the_same(on_two_ranks):
    for rank in on_two_ranks:
        assert set(rank["replicated"].values()) == {True}


def test_a_hugging_face_model_is_divided_by_its_own_plan_and_sharded(on_two_ranks, llama_folder):
    one = ("parallel=single", "trainer.micro_batch=8")
    half = ("parallel=single", "trainer.micro_batch=4", "trainer.batch_tokens=128")  # each rank is given the same rows
    divided, sharded = on_two_ranks[0]["hugging_face"]
    alone, alone_on_half = workers.hugging_face_losses(llama_folder, [one, half])
    assert divided == pytest.approx(alone, abs=5e-6)
    assert sharded == pytest.approx(alone_on_half, abs=5e-6)


def check_memory(ranks: list[dict[str, int]], model_bytes: dict[str, int]) -> None:
    """Parameters, gradients and two moments, divided; at most one gathered block beside them."""
    share = 4 * model_bytes["all"] / len(ranks)
    for seen in ranks:
        held = seen["second_step"] - seen["before"]
        assert share * 0.85 <= held <= (share + model_bytes["block"]) * 1.15
        assert seen["ready"] - seen["before"] <= model_bytes["all"] / len(ranks) * 1.15


def test_two_ranks_hold_half_of_the_training_state_each(on_two_ranks, model_bytes):
    check_memory([rank["memory"] for rank in on_two_ranks], model_bytes)


@pytest.mark.slow
def test_four_ranks_hold_a_quarter_of_the_training_state_each(model_bytes):
    check_memory(run_ranks(4, workers.memory, ("parallel=fsdp", "trainer.micro_batch=2")), model_bytes)


def test_with_accumulation_gradients_are_sent_once_a_step(on_two_ranks):
    sent = on_two_ranks[0]["bytes"]
    steps, reduced = 2, "_reduce_scatter_base_"
    assert sent["once"][reduced] == sent["plain"][reduced]
    assert sent["each"][reduced] == 4 * sent["once"][reduced]
    gradients = sent["once"][reduced] / steps
    model = build_model(compose([*workers.SMALL]).config.model, seed=0)
    assert gradients == pytest.approx(sum(p.numel() * 4 for p in model.parameters()), rel=0.01)
