"""Peak memory in closed form, beside what the real decoder holds."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from typing import get_args, get_type_hints

import pytest
import torch

from skytrain.config import DecoderConfig, ParallelConfig, compose
from skytrain.models import Decoder, lm_loss
from skytrain.planning import Mesh, decoder_size, largest_micro_batch, usable_bytes
from skytrain.planning.memory import (
    WORKSPACE_BYTES,
    Precision,
    TrainingJob,
    block_activation_bytes,
    path_of,
    rank_memory,
    training_state,
)
from skytrain.planning.mesh import requested_mesh

from .fake_gpu import peak_bytes

MODELS = (
    "gpt2-124m",
    "gpt2-355m",
    "llama-3.2-1b",
    "llama-3.1-70b",
    "qwen2.5-0.5b",
    "qwen3-0.6b",
    "gemma-2-2b",
    "exaone-3.5-2.4b",
)


@lru_cache
def decoder(name: str) -> DecoderConfig:
    model = compose([f"model={name}", "tokenizer.vocab_size=257"]).config.model
    assert isinstance(model, DecoderConfig)
    return model


def preset(name: str, gpus: int, nodes: int = 1) -> Mesh:
    """As `train` would form it."""
    model = "mixtral-tiny" if "ep-" in name else "gpt2-124m"
    return requested_mesh(compose([f"model={model}", f"parallel={name}"]).config.parallel, gpus, nodes)


PRESETS = [name for name in get_args(get_type_hints(ParallelConfig)["name"]) if name != "auto"]
GPT2 = replace(decoder("gpt2-124m"), vocab_size=50257)
SMALL = replace(GPT2, layers=4, width=256, heads=4, vocab_size=2000)
LLAMA = replace(
    decoder("llama-3.2-1b"), layers=4, width=256, heads=8, kv_heads=2, head_size=None, mlp_width=1024, vocab_size=2000
)


@pytest.mark.parametrize("name", MODELS)
def test_parameters_in_closed_form_are_those_of_the_model_on_the_meta_device(name: str) -> None:
    model = decoder(name)
    with torch.device("meta"):
        built = Decoder(replace(model, pad_vocab_to=1))
    assert decoder_size(model).parameters == sum(parameter.numel() for parameter in built.parameters())


@pytest.mark.parametrize("model", [SMALL, LLAMA], ids=["gpt2", "llama"])
@pytest.mark.parametrize("checkpointing", [False, True])
@pytest.mark.parametrize(("micro_batch", "accumulation"), [(4, 1), (16, 2)])
def test_the_peak_is_what_autograd_holds(
    model: DecoderConfig, checkpointing: bool, micro_batch: int, accumulation: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = TrainingJob(model, 256, micro_batch, accumulation, checkpointing=checkpointing)
    predicted = rank_memory(job, Mesh()).allocated - WORKSPACE_BYTES
    held = peak_bytes(job, monkeypatch)
    assert 0.97 * held <= predicted <= 1.10 * held


@pytest.mark.parametrize("model", [SMALL, LLAMA], ids=["gpt2", "llama"])
def test_selective_recomputation_holds_what_products_and_attention_return(
    model: DecoderConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = TrainingJob(model, 256, 16, 2, selective=True)
    held = peak_bytes(job, monkeypatch)
    predicted = rank_memory(job, Mesh()).allocated - WORKSPACE_BYTES
    assert 0.95 * held <= predicted <= 1.10 * held
    none, full = (
        rank_memory(replace(job, selective=False), Mesh()),
        rank_memory(replace(job, checkpointing=True), Mesh()),
    )
    assert full.activations < rank_memory(job, Mesh()).activations < none.activations


def test_the_peak_of_a_tiny_micro_batch_is_the_loss_while_autocast_holds_a_copy_of_every_weight(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    job = TrainingJob(replace(decoder("llama-3.2-1b"), layers=4, vocab_size=32000), 2048, 1, 2, checkpointing=True)
    predicted = rank_memory(job, Mesh()).allocated - WORKSPACE_BYTES
    assert predicted == pytest.approx(peak_bytes(job, monkeypatch), rel=0.01)


@pytest.mark.parametrize("precision", ["32-true", "16-mixed", "bf16-true"])
@pytest.mark.parametrize("micro_batch", [1, 16])
def test_the_peak_in_each_precision_is_what_autograd_and_the_optimizer_hold(
    precision: Precision, micro_batch: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = TrainingJob(SMALL, 256, micro_batch, 2, precision=precision)
    predicted = rank_memory(job, Mesh()).allocated - WORKSPACE_BYTES
    assert predicted == pytest.approx(peak_bytes(job, monkeypatch), rel=0.05)


def test_adam_in_mixed_precision_holds_16_bytes_a_parameter() -> None:
    memory = rank_memory(TrainingJob(GPT2, 1024, 8, accumulation=4), Mesh())
    states = memory.parameters + memory.gradients + memory.optimizer
    assert states == pytest.approx(16 * decoder_size(GPT2).parameters, rel=0.001)  # and the padding of the vocabulary


@pytest.mark.parametrize(
    ("name", "parameters", "gradients", "optimizer"),  # bytes of a parameter on one of eight ranks
    [
        ("ddp", 4, 4, 8),
        ("fsdp", 4 / 8, 4 / 8, 8 / 8),
        ("cp", 4 / 8, 4 / 8, 8 / 8),  # ranks that share a sequence divide the state as well
        ("deepspeed-zero1", 2, 4, 12 / 8),  # bfloat16 weights, with a float32 copy beside AdamW's moments
        ("deepspeed-zero2", 2, 4 / 8, 12 / 8),
        ("deepspeed-zero3", 2 / 8, 4 / 8, 12 / 8),
        ("deepspeed-zero3-offload", 0, 0, 0),
    ],
)
def test_each_way_of_sharding_divides_its_part_of_the_state(
    name: str, parameters: float, gradients: float, optimizer: float
) -> None:
    state = training_state(TrainingJob(GPT2, 1024, 1), preset(name, 8), held=1.0)
    assert (state.parameters, state.gradients, state.optimizer) == pytest.approx((parameters, gradients, optimizer))


def test_state_in_the_machines_own_memory_is_none_on_the_gpu_but_for_what_is_gathered() -> None:
    job = TrainingJob(GPT2, 1024, 1)
    here, there = rank_memory(job, Mesh(shard=8)), rank_memory(job, Mesh(shard=8, offload=True))
    assert there.parameters == there.optimizer == 0 and there.buffers == here.buffers > 0


@pytest.mark.parametrize("name", PRESETS)
def test_every_preset_has_a_memory_of_all_its_parts(name: str) -> None:
    mesh = preset(name, 1 if name == "single" else 16, 2)
    memory = rank_memory(TrainingJob(decoder("llama-3.1-8b"), 8192, 1, accumulation=16), mesh)
    assert memory.total > memory.allocated > memory.parameters
    assert (memory.parameters == 0) == (memory.optimizer == 0) == name.endswith("offload")


def test_gradients_that_travel_once_a_step_are_whole_between_micro_batches() -> None:
    mesh = Mesh(shard=8)
    once, each = (
        rank_memory(TrainingJob(GPT2, 1024, 1, accumulation=4, reduce_once=how), mesh).gradients
        for how in (True, False)
    )
    assert once == 8 * each
    assert rank_memory(TrainingJob(GPT2, 1024, 1, accumulation=1), mesh).gradients == pytest.approx(each)


def test_tensor_context_and_pipeline_ranks_each_hold_a_part_of_the_activations() -> None:
    job = TrainingJob(decoder("llama-3.1-8b"), 8192, 1, accumulation=1)
    whole = rank_memory(job, Mesh(shard=2)).activations
    assert (
        whole / 8 < rank_memory(job, Mesh(tensor=8)).activations < whole / 3
    )  # the gathered sequence is whole on each
    assert rank_memory(job, Mesh(context=8)).activations == pytest.approx(whole / 8)
    assert rank_memory(job, Mesh(pipeline=8)).activations < whole / 4


def test_gathering_a_sequence_holds_the_keys_of_all_its_parts_and_a_ring_those_of_two() -> None:
    job, mesh = TrainingJob(decoder("llama-3.1-8b"), 65536, 1, accumulation=2), Mesh(context=8)
    ring, gather, heads = (
        rank_memory(replace(job, context_method=method), mesh).buffers for method in ("ring", "allgather", "ulysses")
    )
    part = 65536 / 8 * 2 * 8 * 128 * (2 + 4)  # keys and values of eight groups, and their gradients
    assert (ring - heads, gather - heads) == pytest.approx((2 * part, 8 * part))


def test_deepspeeds_buffers_hold_one_blocks_gradients() -> None:
    model = decoder("llama-3.1-8b")
    few, many = (
        rank_memory(TrainingJob(replace(model, layers=layers), 4096, 1, 2), preset("deepspeed-zero2", 8)).buffers
        for layers in (8, 32)
    )
    assert few == pytest.approx(many)


def test_the_largest_micro_batch_fits_and_one_more_does_not() -> None:
    limit = usable_bytes(22888)
    job = TrainingJob(GPT2, 1024, 1, accumulation=2)
    largest = largest_micro_batch(job, Mesh(), limit)
    assert rank_memory(replace(job, micro_batch=largest), Mesh()).total <= limit
    assert rank_memory(replace(job, micro_batch=largest + 1), Mesh()).total > limit


def test_a_model_too_large_for_the_gpu_has_no_micro_batch() -> None:
    assert largest_micro_batch(TrainingJob(decoder("llama-3.1-8b"), 8192, 1), Mesh(), usable_bytes(22888)) == 0


def test_a_chunked_loss_holds_the_logits_of_one_chunk() -> None:
    job = TrainingJob(GPT2, 1024, 16, accumulation=2, loss_chunk_tokens=2048)
    assert rank_memory(job, Mesh()).logits in (0, 2048 * 50304 * 12)
    assert rank_memory(job, Mesh()).total < rank_memory(replace(job, loss_chunk_tokens=None), Mesh()).total


def test_fused_kernels_hold_less_and_work_where_layers_are_whole() -> None:
    job = TrainingJob(GPT2, 1024, 16, accumulation=2, fused=True)
    assert [path_of(job, mesh) for mesh in (Mesh(), Mesh(replicate=4), Mesh(shard=4), Mesh(tensor=4))] == [
        "fused",
        "fused",
        "fused",
        "eager",
    ]
    assert path_of(replace(job, precision="32-true"), Mesh()) == "eager"
    fused, plain = rank_memory(job, Mesh()), rank_memory(replace(job, fused=False), Mesh())
    assert fused.logits == plain.logits / 6 and fused.activations < plain.activations


@pytest.mark.parametrize("name", ["olmo-2-1b", "qwen3-0.6b"])
def test_on_fused_kernels_only_a_norm_over_all_heads_keeps_queries_and_keys_once_more(name: str) -> None:
    model = decoder(name)
    job, plain = (TrainingJob(each, 1024, 2, fused=True) for each in (model, replace(model, qk_norm=False)))
    more = block_activation_bytes(job, Mesh()) - block_activation_bytes(plain, Mesh())
    apart = model.qk_norm_scope == "projection"
    assert more == apart * 2 * 1024 * 2 * (model.heads + model.groups) * model.head_width


@pytest.mark.parametrize(("micro_batch", "measured_gb"), [(64, 30.8), (128, 59.5)])
def test_a_modern_decoder_on_fused_kernels_holds_what_was_measured(micro_batch: int, measured_gb: float) -> None:
    """By benchmarks/training/modern_h200.log: allocated bytes, without what the allocator and the driver add."""
    config = compose(["recipe=modern-124m"]).config
    assert isinstance(config.model, DecoderConfig)
    steps = 128 // micro_batch
    job = TrainingJob(config.model, 1024, micro_batch, accumulation=steps, fused=True, optimizer=config.optimizer.facts)
    memory = rank_memory(job, Mesh())
    assert (memory.total - memory.fragmentation - memory.runtime) / 1e9 == pytest.approx(measured_gb, rel=0.03)


@pytest.mark.slow
@pytest.mark.parametrize("model", [SMALL, LLAMA], ids=["gpt2", "llama"])
def test_a_compiled_block_keeps_what_the_partitioner_leaves_it(model: DecoderConfig) -> None:
    """Two depths, so that the embedding and the head drop out of the difference."""
    micro_batch, length = 4, 256

    def kept(layers: int) -> int:
        torch.compiler.reset()
        built = Decoder(replace(model, layers=layers, vocab_size=1000))
        own = {parameter.untyped_storage().data_ptr() for parameter in built.parameters()}
        loss_of = torch.compile(lm_loss, backend="aot_eager_decomp_partition", dynamic=False)
        batch = torch.zeros(micro_batch, length + 1, dtype=torch.long)
        saved: dict[int, int] = {}

        def keep(tensor: torch.Tensor) -> torch.Tensor:
            storage = tensor.untyped_storage()
            if storage.data_ptr() not in own:
                saved[storage.data_ptr()] = storage.nbytes()
            return tensor

        with (
            torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor),
            torch.autocast("cpu", torch.bfloat16),
        ):
            loss = loss_of(built, batch[:, :-1], batch[:, 1:])
        assert loss.requires_grad
        return sum(saved.values())

    sizes = [decoder_size(replace(model, layers=layers)).matmul_parameters for layers in (1, 2)]
    copies = 2 * (sizes[1] - sizes[0])  # of the weights, in bfloat16
    block = block_activation_bytes(TrainingJob(model, length, micro_batch, compiled=True), Mesh())
    assert kept(2) - kept(1) == pytest.approx(block + copies, rel=0.03)


def test_fsdp_on_one_gpu_is_planned_as_it_computes_and_not_as_a_single_device() -> None:
    """It keeps weights and activations of the step in bf16, where autocast keeps the residual stream in float32."""
    config = compose(["model=llama-3.2-1b", "parallel=fsdp", "trainer.batch_tokens=524288"]).config
    alone = requested_mesh(config.parallel, 1, 1)
    assert alone.gpus == 1 and alone.divides and alone != Mesh()
    job = TrainingJob(config.model, 2048, 4)
    assert rank_memory(job, alone).activations < rank_memory(job, Mesh()).activations
