"""Communication, step time, calibration and the search, on paper."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from skytrain.config import DecoderConfig, SkytrainError, compose
from skytrain.planning import (
    Machines,
    Measurement,
    Mesh,
    Node,
    Placement,
    best_placement,
    decoder_fields,
    decoder_size,
    load_measurements,
    mesh_words,
    save_measurement,
    throughput,
    usable_bytes,
    warm_worst,
)
from skytrain.planning.catalog import packaged_catalog
from skytrain.planning.communication import Exchange, bubble_fraction, exchanges
from skytrain.planning.measurements import predict
from skytrain.planning.memory import TrainingJob, path_of, rank_memory
from skytrain.planning.mesh import requested_mesh
from skytrain.planning.search import Fixed, NoPlacement, _kinds as kinds_of_recomputation, meshes
from skytrain.planning.throughput import (
    COMPILED,
    EAGER,
    NORM_BYTES,
    launch_seconds,
    mfu,
    step_time,
    together,
    tokens_per_step,
)
from skytrain.storage import DamagedRecord
from skytrain.training import losses

CATALOG = packaged_catalog()
G5 = Node.of(CATALOG.instance("g5.12xlarge"))
P5 = Node.of(CATALOG.instance("p5.48xlarge"))
H200 = Node.of_device("NVIDIA H200")
assert H200 is not None


def decoder(name: str) -> DecoderConfig:
    model = compose([f"model={name}", "tokenizer.vocab_size=257"]).config.model
    assert isinstance(model, DecoderConfig)
    return model


GPT2 = replace(decoder("gpt2-124m"), vocab_size=50257)
LLAMA70B = decoder("llama-3.1-70b")


def measured(job: TrainingJob, seconds: float, **changes: Any) -> Measurement:
    fields = {
        "device": "NVIDIA H200", "gpus": 1, "model": job.model.name, "decoder": decoder_fields(job.model), "sequence_length": job.sequence_length,
        "micro_batch": job.micro_batch, "accumulation": job.accumulation, "preset": "single", "precision": job.precision, "path": path_of(job, Mesh()),
        "checkpointing": False, "step_seconds": seconds, "peak_bytes": None, "date": "2026-11-15", "torch": "2.11",
    }  # fmt: skip
    return Measurement(**(fields | changes))


def test_each_tensor_rank_computes_all_norms_where_nothing_is_sequence_parallel() -> None:
    job = TrainingJob(GPT2, 1024, 8, compiled=True)

    def traffic(tensor: int, **changes: Any) -> float:
        return step_time(job, Mesh(tensor=tensor), P5, replace(COMPILED, **changes)).traffic

    assert traffic(1, sequence_parallel=False) == traffic(1)
    whole = traffic(2, sequence_parallel=False) - traffic(2)
    assert whole == pytest.approx(job.accumulation * norm_seconds(job, NORM_BYTES) / 2)
    # Norms of several kernels move more, divided only where the sequence is.
    assert traffic(2, norm_bytes=100.0) - traffic(2) == pytest.approx(norm_seconds(job, 100.0) / 2)
    both = traffic(2, norm_bytes=100.0, sequence_parallel=False) - traffic(2, sequence_parallel=False)
    assert both == pytest.approx(norm_seconds(job, 100.0))


def norm_seconds(job: TrainingJob, bytes_each: float) -> float:
    elements = job.model.layers * job.micro_batch * job.sequence_length * job.model.width
    return elements * bytes_each / (P5.gpu.memory_bytes_per_s * throughput.BANDWIDTH)


def test_weights_that_are_bf16_already_are_not_cast_in_each_micro_batch() -> None:
    job = TrainingJob(GPT2, 1024, 1, accumulation=32, compiled=True)
    mixed, narrow = (step_time(job, Mesh(), P5, one).traffic for one in (COMPILED, replace(COMPILED, weight_bytes=8)))
    saved = 32 * (throughput.WEIGHT_BYTES - 8) * decoder_size(GPT2).parameters
    assert mixed - narrow == pytest.approx(saved / (P5.gpu.memory_bytes_per_s * throughput.BANDWIDTH))


def test_data_parallel_ranks_exchange_their_gradients_once_a_step_however_many_micro_batches() -> None:
    for accumulation in (1, 8):
        (found,) = exchanges(TrainingJob(GPT2, 1024, 8, accumulation), Mesh(replicate=8), G5)
        assert found.bytes == pytest.approx(2 * 7 / 8 * 4 * decoder_size(GPT2).parameters)
        assert found.link == "efa"  # two machines of four


def test_sharded_weights_travel_twice_in_each_micro_batch_and_gradients_there_or_once_a_step() -> None:
    (found,) = exchanges(TrainingJob(GPT2, 1024, 8, 3, reduce_once=False), Mesh(shard=4), G5)
    assert found.bytes == pytest.approx(3 * 3 / 4 * (2 + 2 + 4) * decoder_size(GPT2).parameters)
    assert found.link == "pcie"
    (fewer,) = exchanges(TrainingJob(GPT2, 1024, 8, 3), Mesh(shard=4), G5)
    assert fewer.bytes == pytest.approx(3 / 4 * (3 * (2 + 2) + 4) * decoder_size(GPT2).parameters)


def test_tensor_ranks_gather_and_scatter_activations_four_times_a_layer() -> None:
    (found,) = exchanges(TrainingJob(GPT2, 1024, 8), Mesh(tensor=4), G5)
    assert found.bytes == pytest.approx(12 * 4 * 2 * 3 / 4 * 2 * 8 * 1024 * 768)
    assert not found.overlapped


def test_a_divided_sequence_sends_keys_and_their_gradients_or_heads_by_its_method() -> None:
    model, tokens = replace(decoder("llama-3.1-8b"), layers=1), 65536 / 8
    job = TrainingJob(model, 65536, 1)

    def found(method: str) -> Exchange:
        (one,) = (
            one
            for one in exchanges(replace(job, context_method=method), Mesh(context=8), P5)
            if one.dimension == "context"
        )
        return one

    keys = 2 * 8 * 128  # of a token, in eight groups, and its values
    assert found("ring").bytes == pytest.approx(tokens * keys * (2 * 7 * 2 + 8 * 4))
    assert found("allgather").bytes == pytest.approx(tokens * keys * (2 * 7 * 2 + 7 * 4))
    assert found("ulysses").bytes == pytest.approx(tokens * (2 * 32 * 128 + keys) * 2 * 2 * 7 / 8)
    assert [found(method).overlapped for method in ("ring", "allgather", "ulysses")] == [True, False, False]


def test_a_ring_that_leaves_the_machine_shares_its_network_with_the_other_rings() -> None:
    (together,) = exchanges(TrainingJob(GPT2, 1024, 8), Mesh(shard=8), G5)
    (apart,) = (
        one for one in exchanges(TrainingJob(GPT2, 1024, 8), Mesh(shard=2, tensor=4), G5) if one.dimension == "shard"
    )
    assert apart.bytes / apart.seconds < together.bytes / together.seconds / 2


def test_the_bubble_is_that_of_1f1b_and_shrinks_with_interleaving() -> None:
    job = TrainingJob(GPT2, 1024, 1, 32)
    assert bubble_fraction(job, Mesh(pipeline=8)) == pytest.approx(7 / 39)
    assert bubble_fraction(job, Mesh(pipeline=8, chunks=2)) == pytest.approx(7 / 71)
    assert bubble_fraction(job, Mesh()) == 0
    few = replace(job, pipeline_micro_batches=8)  # the pipeline is empty after every 8
    assert bubble_fraction(few, Mesh(pipeline=8)) == pytest.approx(7 / 15)


def test_a_step_takes_its_parts_and_mfu_counts_model_flops_only() -> None:
    job, mesh = TrainingJob(GPT2, 1024, 64, compiled=True), Mesh(replicate=8)
    step = step_time(job, mesh, P5)
    assert step.seconds == pytest.approx(sum(vars(step).values()))
    utilisation = mfu(job, mesh, P5, step.seconds)
    again = step_time(replace(job, checkpointing=True), mesh, P5)
    assert utilisation is not None and 0.3 < utilisation < 0.5  # published: 0.40 by llm.c and modded-nanogpt
    assert again.seconds > 1.15 * step.seconds
    assert tokens_per_step(job, mesh) == 8 * 64 * 1024


def test_fused_kernels_move_as_much_where_copies_are_whole_as_where_they_are_sharded() -> None:
    job = TrainingJob(GPT2, 1024, 64, fused=True)
    assert step_time(job, Mesh(replicate=8), P5).traffic == step_time(job, Mesh(shard=8), P5).traffic


def test_small_micro_batches_wait_for_the_host() -> None:
    job = TrainingJob(GPT2, 128, 1)
    small, large = step_time(job, Mesh(), P5), step_time(replace(job, micro_batch=64, sequence_length=1024), Mesh(), P5)
    assert small.host > 0.5 * small.seconds
    assert large.host < 0.001 * large.seconds


def test_a_small_micro_batch_of_one_gpu_is_a_graph_and_does_not_wait_for_the_host() -> None:
    job = TrainingJob(GPT2, 1024, 4, fused=True, graphs=True)
    plain = replace(job, graphs=False)
    assert step_time(job, Mesh(), P5).seconds < 0.7 * step_time(plain, Mesh(), P5).seconds
    for mesh, tokens in ((Mesh(replicate=2), 4), (Mesh(), 64)):
        graphed, not_graphed = (launch_seconds(replace(one, micro_batch=tokens), mesh) for one in (job, plain))
        assert graphed == not_graphed
    assert losses.GRAPHED_TOKENS == throughput.GRAPHED_TOKENS  # what training does, and what is planned


def test_host_and_device_that_take_as_long_make_a_step_longer_than_either() -> None:
    assert together(1.0, 0.1) == pytest.approx(1.0, rel=0.001) == together(0.1, 1.0)
    assert 1.1 < together(1.0, 1.0) < 1.3


def test_a_prediction_says_whether_it_is_measured_calibrated_or_assumed() -> None:
    assert H200 is not None
    job = TrainingJob(GPT2, 1024, 48)
    roofline = step_time(job, Mesh(), H200).seconds
    slow = [measured(job, 2 * roofline)]
    assert predict(job, Mesh(), H200).source == "assumed"
    assert predict(job, Mesh(), H200, slow).source == "measured"
    other = replace(job, micro_batch=64)
    found = predict(other, Mesh(), H200, slow)
    assert found.source == "calibrated"
    assert found.seconds == pytest.approx(2 * step_time(other, Mesh(), H200).seconds, rel=0.01)
    assert predict(replace(job, compiled=True), Mesh(), H200, slow).source == "assumed"
    assert predict(job, Mesh(), P5, slow).source == "assumed"


def test_the_measurement_nearest_in_model_then_length_then_micro_batch_decides() -> None:
    assert H200 is not None
    job = TrainingJob(GPT2, 1024, 24)
    roofline = step_time(job, Mesh(), H200).seconds
    elsewhere = replace(job, model=decoder("gpt2-355m"))
    known = [
        measured(elsewhere, 9 * step_time(elsewhere, Mesh(), H200).seconds),
        measured(replace(job, micro_batch=32), 3 * step_time(replace(job, micro_batch=32), Mesh(), H200).seconds),
        measured(replace(job, micro_batch=64), 5 * step_time(replace(job, micro_batch=64), Mesh(), H200).seconds),
    ]
    assert predict(job, Mesh(), H200, known).seconds == pytest.approx(3 * roofline, rel=0.02)


def test_a_step_that_waits_for_the_host_calibrates_the_host_and_not_the_device() -> None:
    assert H200 is not None
    small, large = TrainingJob(GPT2, 1024, 1), TrainingJob(GPT2, 1024, 64)
    launch = launch_seconds(small, Mesh())
    assert step_time(small, Mesh(), H200).seconds == pytest.approx(launch, rel=0.01)
    slow_host = [measured(small, 2 * launch)]
    assert predict(replace(small, micro_batch=2), Mesh(), H200, slow_host).seconds == pytest.approx(
        2 * launch, rel=0.01
    )
    beyond = predict(large, Mesh(), H200, slow_host)
    assert beyond.source == "assumed" and "device" in beyond.because
    assert beyond.seconds == pytest.approx(step_time(large, Mesh(), H200).seconds, rel=0.01)

    slow_device = [measured(large, 2 * step_time(large, Mesh(), H200).seconds)]
    assert predict(small, Mesh(), H200, slow_device).seconds == pytest.approx(launch, rel=0.02)
    both = predict(replace(large, micro_batch=32), Mesh(), H200, slow_host + slow_device)
    expected = together(2 * step_time(replace(large, micro_batch=32), Mesh(), H200).device, 2 * launch)
    assert both.seconds == pytest.approx(expected, rel=0.01)


def test_what_the_host_added_to_a_measured_step_is_not_taken_for_the_devices_time() -> None:
    assert H200 is not None
    near, far = TrainingJob(GPT2, 1024, 16, fused=True), TrainingJob(GPT2, 1024, 64, fused=True)
    truth = {
        job: together(1.3 * step_time(job, Mesh(), H200).device, launch_seconds(job, Mesh())) for job in (near, far)
    }
    assert predict(far, Mesh(), H200, [measured(near, truth[near])]).seconds == pytest.approx(truth[far])


def test_measurements_come_back_from_the_cache_and_a_newer_one_replaces_the_older(tmp_path: Path) -> None:
    job = TrainingJob(GPT2, 1024, 16)
    save_measurement(measured(job, 1.0), tmp_path)
    save_measurement(measured(job, 2.0), tmp_path)
    save_measurement(measured(replace(job, micro_batch=4), 3.0), tmp_path)
    assert sorted(one.step_seconds for one in load_measurements(tmp_path)) == [2.0, 3.0]


@pytest.mark.parametrize("text", ["{", "[]", "{}"])
def test_a_measurement_that_cannot_be_read_says_once_what_to_do(text: str, tmp_path: Path) -> None:
    (tmp_path / "measurements").mkdir()
    (tmp_path / "measurements" / "a.json").write_text(text)
    with pytest.raises(DamagedRecord, match=r"a\.json is damaged") as error:
        load_measurements(tmp_path)
    assert str(error.value).splitlines()[1:] == ["  remove it, and measure again: skytrain plan --measure"]


def test_the_worst_of_steps_10_to_19_counts_and_fewer_steps_are_refused() -> None:
    seconds = [9.0] * 10 + [1.0] * 9 + [1.5]
    assert warm_worst(seconds) == 1.5
    with pytest.raises(SkytrainError, match="20 steps"):
        warm_worst(seconds[:15])


def test_the_search_finds_a_mesh_for_70b_on_2048_gpus_within_memory_and_batch() -> None:
    instance = CATALOG.instance("p5.48xlarge")
    found = best_placement(
        TrainingJob(LLAMA70B, 8192, 1, compiled=True), Machines(P5, 2048, instance.gpu_memory_mib), 2048 * 8192
    )
    assert isinstance(found, Placement)
    assert found.mesh.gpus == 2048 and found.mesh.tensor <= 8
    assert found.memory.total <= usable_bytes(instance.gpu_memory_mib)
    assert tokens_per_step(found.job, found.mesh) == 2048 * 8192


def test_the_search_says_what_is_missing_where_nothing_fits() -> None:
    found = best_placement(TrainingJob(LLAMA70B, 8192, 1), Machines(G5, 4, 22888), 64 * 8192)
    assert isinstance(found, NoPlacement)
    assert "per GPU" in found.reason


def test_the_search_keeps_a_given_mesh_and_leaves_out_what_cannot_run() -> None:
    job, machines = TrainingJob(GPT2, 1024, 1), Machines(G5, 4, 22888)
    free = best_placement(job, machines, 524288, problem=lambda one: "no copies" if one.mesh.preset == "ddp" else None)
    fixed = best_placement(job, machines, 524288, fixed=Fixed(mesh=Mesh(tensor=4)))
    nothing = best_placement(job, machines, 524288, problem=lambda _: "not today")
    assert isinstance(free, Placement) and isinstance(fixed, Placement)
    assert fixed.mesh == Mesh(tensor=4) and free.mesh.preset != "ddp"
    assert free.tokens_per_s > fixed.tokens_per_s  # tensor parallelism over PCIe
    assert nothing == NoPlacement("not today")


def test_the_search_recomputes_no_more_than_memory_asks_for() -> None:
    job = TrainingJob(LLAMA70B, 8192, 1, compiled=True)
    machines = Machines(P5, 2048, 81920)
    free = best_placement(job, machines, 2048 * 8192)
    full = best_placement(job, machines, 2048 * 8192, fixed=Fixed(recomputation="full"))
    none = best_placement(job, machines, 2048 * 8192, fixed=Fixed(recomputation="none"))
    assert isinstance(free, Placement) and isinstance(full, Placement) and isinstance(none, Placement)
    assert [one.job.recomputation for one in (free, full, none)] == ["selective", "full", "none"]
    assert free.tokens_per_s > max(full.tokens_per_s, none.tokens_per_s)
    small = best_placement(TrainingJob(GPT2, 1024, 1), Machines(P5, 1, 81920), 524288)
    assert isinstance(small, Placement) and small.job.recomputation == "none"


def test_a_pipeline_is_planned_only_with_micro_batches_that_fill_it() -> None:
    job = TrainingJob(GPT2, 1024, 1, schedule="interleaved-1f1b")
    found = best_placement(job, Machines(P5, 4, 81920), 96 * 1024, fixed=Fixed(mesh=Mesh(pipeline=4, chunks=2)))
    assert isinstance(found, Placement) and found.job.accumulation % 4 == 0
    refused = best_placement(job, Machines(P5, 4, 81920), 6 * 1024, fixed=Fixed(mesh=Mesh(pipeline=4, chunks=2)))
    assert isinstance(refused, NoPlacement)


def mesh_of(words: list[str], gpus: int, nodes: int) -> Mesh:
    return requested_mesh(compose(["model=gpt2-124m", *words]).config.parallel, gpus, nodes)


def test_meshes_are_read_by_preset_or_by_degrees_and_named() -> None:
    assert mesh_words("tp-fsdp") == ["parallel=tp-fsdp"]
    assert mesh_of(mesh_words("shard=-1,tensor=4"), 8, 1) == Mesh(shard=2, tensor=4)
    assert str(mesh_of(["parallel=hsdp"], 16, 2)) == "hsdp(replicate=2, shard=8)"
    assert Mesh(replicate=2, shard=2, tensor=2).preset == "tp-fsdp" and Mesh(context=2, tensor=2).preset == "cp"


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("tpfsdp", "tp-fsdp"),
        ("tensr=4", "tensor"),
        ("tensor=3", "is for 3 GPUs, not 8"),
        ("tensor=x", "whole number"),
        ("shard=0", "whole number"),
        ("shard=-1,tensor=-1", "only one degree"),
    ],
)
def test_a_mesh_that_cannot_be_is_refused_with_a_reason(text: str, complaint: str) -> None:
    with pytest.raises(SkytrainError, match=complaint):
        mesh_of(mesh_words(text), 8, 2)


def pipelined(fixed: Fixed) -> Placement:
    model = compose(["model=llama-3.1-70b", "tokenizer.vocab_size=257"]).config.model
    assert isinstance(model, DecoderConfig)
    p4d = CATALOG.instance("p4d.24xlarge")
    found = best_placement(
        TrainingJob(model, 4096, 1, compiled=True),
        Machines(Node.of(p4d), 256, p4d.gpu_memory_mib),
        64 * 4096,
        fixed=fixed,
    )
    assert isinstance(found, Placement)
    return found


def test_the_schedule_of_a_pipeline_is_searched_unless_it_is_given() -> None:
    free, kept = pipelined(Fixed()), pipelined(Fixed(schedule=True))
    assert kept.job.schedule == "1f1b" and kept.mesh.chunks == 1
    assert free.mesh.pipeline > 1 and free.job.schedule == "zbv" and free.mesh.chunks == 2
    assert free.tokens_per_s > kept.tokens_per_s


def test_more_machines_make_a_step_slower_than_communication_alone() -> None:
    node = Node.of(packaged_catalog().instance("p5.48xlarge"))
    job = TrainingJob(GPT2, 1024, 32, accumulation=4)

    def seconds(gpus: int, straggling: float) -> float:
        software = replace(EAGER, straggling=straggling)
        return step_time(job, Mesh(replicate=gpus), node, software).seconds

    assert seconds(8, 0.01) == seconds(8, 0.0)
    assert seconds(512, 0.01) / seconds(512, 0.0) == pytest.approx(1.06, rel=0.01)  # six doublings


MIXTRAL = replace(decoder("mixtral-8x7b"), vocab_size=32000)


def test_ranks_that_divide_experts_recompute_blocks_whole_or_not_at_all():
    job = TrainingJob(MIXTRAL, 4096, 1)
    levels = {
        expert: {each.recomputation for each in kinds_of_recomputation(job, Mesh(shard=8, expert=expert), Fixed())}
        for expert in (1, 4)
    }
    assert levels == {1: {"none", "selective", "full"}, 4: {"none", "full"}}


def test_expert_parallelism_sends_each_row_to_its_expert_and_back_in_both_passes():
    job = TrainingJob(MIXTRAL, 4096, micro_batch=2, accumulation=3)
    found = {each.dimension: each for each in exchanges(job, Mesh(shard=8, expert=4), P5)}
    rows = 2 * 4096 * 2 * 1.2  # of two experts for each token, and more on the busiest rank
    assert found["expert"].bytes == pytest.approx(3 * 32 * 4 * 2 * rows * 4096 * 3 / 4)
    assert found["expert"].link == "nvlink" and not found["expert"].overlapped
    two = {each.dimension: each for each in exchanges(job, Mesh(shard=16, expert=16), P5)}
    assert two["expert"].link == "efa"
    # The experts of a rank are gathered among fewer ranks.
    whole = {each.dimension: each for each in exchanges(job, Mesh(shard=8), P5)}
    assert found["shard"].bytes < whole["shard"].bytes
    alone = {each.dimension: each for each in exchanges(job, Mesh(shard=8, expert=8), P5)}
    dense = decoder_size(MIXTRAL).padded_parameters - decoder_size(MIXTRAL).expert_parameters
    assert alone["shard"].bytes == pytest.approx((2 * 3 * 2 + 4) * dense * 7 / 8)


def test_tensor_parallelism_copies_experts_and_expert_parallelism_gathers_fewer():
    job = TrainingJob(MIXTRAL, 4096, micro_batch=1)
    size = decoder_size(MIXTRAL)
    copied = rank_memory(job, Mesh(shard=4, tensor=2)).parameters
    assert copied == pytest.approx(
        4 * (size.expert_parameters + (size.padded_parameters - size.expert_parameters) / 2) / 4
    )
    assert rank_memory(job, Mesh(shard=8, expert=8)).buffers < rank_memory(job, Mesh(shard=8)).buffers
    assert rank_memory(job, Mesh(shard=8, expert=8)).parameters == rank_memory(job, Mesh(shard=8)).parameters


def test_the_search_tries_to_divide_experts_which_pays_where_few_tokens_wait_for_many_weights():
    job = TrainingJob(MIXTRAL, 2048, micro_batch=1)
    tried = set(meshes(job, 16, 8))
    assert {Mesh(shard=16), Mesh(shard=16, expert=8), Mesh(shard=8, tensor=2, expert=4)} <= tried
    assert all(mesh.sharing % mesh.expert == 0 and mesh.expert * mesh.tensor <= 8 for mesh in tried)
    assert not any(mesh.expert > 1 for mesh in meshes(replace(job, model=GPT2), 16, 8))
    apart, gathered = (step_time(job, mesh, P5).seconds for mesh in (Mesh(shard=16, expert=8), Mesh(shard=16)))
    assert apart < gathered
    whole = replace(job, micro_batch=16, checkpointing=True)  # enough work to gather them behind
    apart, gathered = (step_time(whole, mesh, P5).seconds for mesh in (Mesh(shard=16, expert=8), Mesh(shard=16)))
    assert gathered < apart
