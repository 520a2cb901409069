"""parallel=auto: what is chosen, for which hardware, and what the user's own settings keep."""

from __future__ import annotations

from dataclasses import replace

import pytest

from skytrain.config import Config, ConfigError, compose, resolve_mesh
from skytrain.jobs import Ranks
from skytrain.parallel import choose_layout, this_machine
from skytrain.parallel.auto import LocalMachine
from skytrain.planning import Node
from skytrain.planning.catalog import packaged_catalog
from skytrain.planning.memory import TrainingJob, rank_memory

CATALOG = packaged_catalog()


@pytest.fixture(autouse=True)
def no_measurements(tmp_path, monkeypatch):
    monkeypatch.setenv("SKYTRAIN_CACHE", str(tmp_path))


def machine(instance: str) -> LocalMachine:
    found = CATALOG.instance(instance)
    return LocalMachine(Node.of(found), found.gpu_memory_mib * 2**20 * 0.985, found.device.name)


def settings(*words: str) -> Config:
    common = ["parallel=auto", "trainer.precision=bf16-mixed", "data=synthetic"]
    return compose([*common, *words]).config


def ranks(world: int, local: int | None = None) -> Ranks:
    return Ranks(0, world, 0, local or world)


def test_a_small_model_on_a_machine_of_four_gpus_is_copied_to_each() -> None:
    chosen, why = choose_layout(settings("model=gpt2-124m"), ranks(4), machine("g5.12xlarge"))
    assert chosen.parallel.name == "ddp" and chosen.parallel.replicate == 4
    assert "ddp(replicate=4)" in why and f"micro-batch {chosen.trainer.micro_batch}" in why and "a10g" in why
    assert resolve_mesh(chosen, 4).gpus == 4


def test_a_model_that_no_gpu_holds_is_divided_and_fits() -> None:
    words = [
        "model=llama-3.1-8b",
        "tokenizer.vocab_size=257",
        "trainer.batch_tokens=524288",
        "trainer.sequence_length=2048",
    ]
    chosen, _ = choose_layout(settings(*words), ranks(8), machine("p4d.24xlarge"))
    mesh = resolve_mesh(chosen, 8)
    assert mesh.shard * mesh.tensor * mesh.pipeline * mesh.context == 8
    trainer = chosen.trainer
    job = TrainingJob(
        chosen.model, trainer.sequence_length, trainer.micro_batch, 2,
        checkpointing=trainer.activation_checkpointing == "full", reduce_once=chosen.parallel.reduce_once,
    )  # fmt: skip
    assert rank_memory(job, mesh).total <= machine("p4d.24xlarge").memory_bytes


def test_a_micro_batch_and_recomputation_that_the_user_has_set_are_kept() -> None:
    config = settings("model=gpt2-124m", "trainer.micro_batch=2", "trainer.activation_checkpointing=none")
    given = {"trainer.micro_batch", "trainer.activation_checkpointing"}
    kept, _ = choose_layout(config, ranks(4), machine("g5.12xlarge"), given)
    free, _ = choose_layout(config, ranks(4), machine("g5.12xlarge"))
    assert (kept.trainer.micro_batch, kept.trainer.activation_checkpointing) == (2, "none")
    assert free.trainer.micro_batch > 2
    again, _ = choose_layout(settings("trainer.activation_checkpointing=full"), ranks(1), machine("g5.xlarge"))
    assert again.trainer.activation_checkpointing == "full"


def test_what_the_user_has_set_is_known_from_where_it_came() -> None:
    given = compose(["parallel=auto", "trainer.micro_batch=2", "recipe=gpt2-124m-pile"]).given
    assert "trainer.micro_batch" in given and "trainer.batch_tokens" not in given


def test_a_layout_that_a_setting_rules_out_is_not_chosen() -> None:
    """float16 is for whole models, and this one with its state is too large for one GPU."""
    words = ["model=llama-3.1-8b", "tokenizer.vocab_size=257", "trainer.precision=16-mixed"]
    with pytest.raises(ConfigError, match="auto finds no layout"):
        choose_layout(settings(*words), ranks(4), machine("g5.12xlarge"))
    small, _ = choose_layout(
        settings("model=gpt2-124m", "trainer.precision=16-mixed"), ranks(4), machine("g5.12xlarge")
    )
    assert small.parallel.name == "ddp"


def test_a_batch_that_does_not_divide_among_the_ranks_is_refused_with_its_numbers() -> None:
    with pytest.raises(ConfigError, match="512 sequences cannot be split over 7"):
        choose_layout(settings("model=gpt2-124m"), ranks(7), machine("g5.12xlarge"))


def test_a_plugged_in_model_is_refused() -> None:
    config = settings("model=gpt2-124m")
    other = compose(["model=hf", "model.name=x", "tokenizer.vocab_size=257"]).config.model
    with pytest.raises(ConfigError, match="built-in decoder"):
        choose_layout(replace(config, model=other), ranks(1), machine("g5.xlarge"))


def test_one_process_on_this_cpu_trains_alone_within_the_memory_it_has() -> None:
    config = settings("model=gpt2-tiny", "tokenizer.vocab_size=257", "trainer.sequence_length=64", "trainer.device=cpu")
    chosen, why = choose_layout(config, Ranks(), this_machine(Ranks(), "cpu"))
    assert chosen.parallel.name == "single" and "tokens/s" not in why


def test_other_verbs_say_that_auto_is_for_train() -> None:
    with pytest.raises(ConfigError, match="skytrain train"):
        resolve_mesh(settings("model=gpt2-124m"), 1)


def test_a_gpu_without_our_own_kernels_is_given_what_torchs_can_hold_there() -> None:
    config, a10g = settings("model=gpt2-124m"), machine("g5.xlarge")
    ours, _ = choose_layout(config, ranks(1), a10g)
    torchs, _ = choose_layout(config, ranks(1), replace(a10g, fused=False))
    assert torchs.trainer.micro_batch < ours.trainer.micro_batch


def test_the_gpu_at_hand_is_the_one_that_torch_names(monkeypatch: pytest.MonkeyPatch) -> None:
    class Properties:
        total_memory = 23_000_000_000

    monkeypatch.setattr("torch.cuda.get_device_name", lambda: "NVIDIA A10G")
    monkeypatch.setattr("torch.cuda.get_device_properties", lambda index: Properties)
    monkeypatch.setattr("skytrain.models.kernels.kernels_available", lambda device: True)
    found = this_machine(ranks(8, 4), "cuda")
    assert (found.node.gpu.name, found.node.gpus, found.memory_bytes) == ("a10g", 4, 23_000_000_000)
    assert found.node.network_bytes_per_s == Node.of(CATALOG.instance("g5.12xlarge")).network_bytes_per_s
    assert found.fused
